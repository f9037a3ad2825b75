import WebClient
import AppleTokens
import Basics
import FoundationEssentials
import Glibc
import JOSE
import Postgres
import Settings
import Terminal

extension Finding {
    static func keys(_ bytes: [UInt8], from url: String) -> Finding {
        do throws(JOSEError) {
            let set = try JSONWebKeySet(parsing: bytes)
            let text = "\(counted(set.keys.count, "key")) at \(url)"
            guard let ignored = set.ignored.first else { return .pass(.keys, text) }
            let unusable = "\(set.ignored.count) that can't be used, the first because \(ignored.reason)"
            return .warn(.keys, "\(text), and \(unusable)", "nothing, as long as notifications are accepted")
        } catch {
            return .fail(.keys, "the response of \(url) is not a key set (\(error))", "check SIWAD_KEYS_URL")
        }
    }

    /// Reads the key of each entry, and looks for a key for each app.
    static func appleKeys(_ keys: AppleKeys, _ audiences: AudienceMap?) -> Finding {
        if let path = keys.absentCredential {
            let text = "\(path) is not there: systemd passes a key to its service only while the service runs"
            return .warn(.appleKeys, text, "ask again while it runs, or name the original file in SIWAD_APPLE_KEYS")
        }
        do throws(AppleKeyFileError) {
            for entry in keys.entries { _ = try AppleKeyFile.read(entry) }
        } catch {
            return .fail(.appleKeys, CommandFailure(.configuration, error.description))
        }
        let text = "\(counted(keys.entries.count, "key")) for client secrets"
        let without = audiences?.groups.filter { keys.entries(for: $0).isEmpty }.map(\.app.rawValue) ?? []
        guard without.isEmpty else {
            return .warn(.appleKeys, "\(text), none for \(without.joined(separator: ", "))", "name one of their team")
        }
        return .pass(.appleKeys, text)
    }

    /// nil if tokens that Apple signs can have this issuer, or if the keys are not Apple's.
    static func issuer(_ issuer: String, keysURL: KeySetURL?) -> Finding? {
        let (apple, usual) = (SettingKey.issuer.defaultText, SettingKey.keysURL.defaultText)
        guard issuer != apple, keysURL?.description == usual else { return nil }
        let detail = "SIWAD_ISSUER is not Apple's, but the keys are: every notification is refused as wrong-issuer"
        return .fail(.configuration, detail, "remove SIWAD_ISSUER")
    }

    /// The response of the notification endpoint to GET, which it must refuse.
    static func endpoint(_ answer: LocalProbe.Response, at url: String) -> Finding {
        let remedy =
            "check what listens there, and that SIWAD_LISTEN and SIWAD_NOTIFICATION_PATH are the same as for siwad serve"
        switch (answer.status, answer.allow) {
        case (405, "POST"):
            return .pass(.endpoint, "\(url) answers, in \(answer.latency.milliseconds) ms")
        case (404, _):
            return .fail(.endpoint, "\(url) is not the path that is served", remedy)
        default:
            return .fail(.endpoint, "\(url) answers \(answer.status) to GET instead of 405: it is not siwad", remedy)
        }
    }

    static func readiness(_ answer: LocalProbe.Response, at url: String) -> Finding {
        // The last line of siwad's answer.
        guard answer.body.contains("readyz check") else {
            let remedy = "check what listens there, and that SIWAD_OPERATIONS_LISTEN is the same as for siwad serve"
            return .fail(.readiness, "\(url) answers \(answer.status), but it is not siwad", remedy)
        }
        if answer.status == 200 {
            // It has a detail only while notifications go to the spool.
            let prefix = "[+]database ok: "
            guard let line = answer.body.split(separator: "\n").first(where: { $0.hasPrefix(prefix) }) else {
                return .pass(.readiness, "siwad serve accepts notifications durably")
            }
            let detail = line.dropFirst(prefix.count)
            return .warn(.readiness, String(detail), "the log of siwad serve names the cause")
        }
        let remedy = "the log of siwad serve names the cause"
        let failed = answer.body.split(separator: "\n").filter { $0.hasPrefix("[-]") }.joined(separator: ", ")
        return .fail(.readiness, "\(url) answers \(answer.status)\(failed.isEmpty ? "" : ": ")\(failed)", remedy)
    }

    /// Compares the siwad that answers with this configuration.
    ///
    /// - Parameters:
    ///   - daemon: nil if it doesn't say.
    ///   - own: its database is nil if it can't be asked, which another check reports.
    static func instance(_ daemon: Instance?, _ own: Instance, at url: String) -> Finding {
        guard let daemon, let keys = Configuration.differences(daemon.settings, own.settings) else {
            return .warn(.instance, "another version of siwad answers at \(url)", "restart siwad serve")
        }
        let remedy = "give siwad doctor the configuration of siwad serve, or restart siwad serve with this one"
        if let theirs = daemon.database, let ours = own.database, theirs != ours {
            return .fail(.instance, "the siwad at \(url) uses another database than this configuration", remedy)
        }
        guard keys.isEmpty else {
            let names = keys.map(\.environmentName).joined(separator: ", ")
            return .warn(.instance, "the siwad at \(url) has other values of \(names)", remedy)
        }
        if daemon.database == nil || own.database == nil {
            let text = "the same settings; the databases can't be compared"
            return .warn(.instance, text, "make PostgreSQL reachable, then ask again")
        }
        return .pass(.instance, "the siwad at \(url) has the same database and settings")
    }

    /// - Parameters:
    ///   - expiry: in seconds since 1970.
    ///   - subject: the endpoint, if it is not that of the notifications.
    static func certificate(validUntil expiry: Int64, now: WallTime, subject: String? = nil) -> Finding {
        let left = WallTime(seconds: expiry).duration(since: now)
        let day = WallTime(seconds: expiry).secondText.prefix(10)
        let remedy = "renew it; siwad serve reads the files again by itself"
        if left <= .zero { return .fail(.certificate, "it expired on \(day)", remedy, subject: subject) }
        if left < .seconds(14 * 86_400) {
            return .warn(.certificate, "it expires in \(left.rounded)", remedy, subject: subject)
        }
        return .pass(.certificate, "valid until \(day)", subject: subject)
    }

    static func spool(_ contents: SpoolContents, limit: Int64, now: WallTime) -> Finding {
        let waiting = "\(counted(contents.waiting.files, "file")) waiting, \(ByteCount(contents.waiting.bytes))"
        if contents.forged > 0 {
            let forged = "\(counted(contents.forged, "notification")) with a bad signature (….forged), none applied"
            let remedy = "find out who else writes to the directory, keep them out, then remove the files"
            return .fail(.spool, "\(forged); \(waiting)", remedy)
        }
        if contents.untrusted > 0 {
            let untrusted = "\(counted(contents.untrusted, "file")) not read because others could have written them"
            let remedy = "if siwad wrote them, give them to its user alone (chown, chmod 600); else remove them"
            return .fail(.spool, "\(untrusted); \(waiting)", remedy)
        }
        if contents.setAside > 0 {
            let setAside = "\(counted(contents.setAside, "file")) set aside, torn or nothing of siwad's"
            let remedy = "look at them; a torn one may hold tokens that can be sent again"
            return .warn(.spool, "\(setAside); \(waiting)", remedy)
        }
        guard contents.waiting.files > 0 else {
            return .pass(.spool, contents.refused.files == 0 ? "empty" : "nothing else waits")
        }
        let text = waiting + age(of: contents.waiting, now)
        let remedy = "they go into PostgreSQL when it is back; see that siwad serve can reach it"
        return isNearlyFull(contents, limit) ? .fail(.spool, text, remedy) : .warn(.spool, text, remedy)
    }

    /// Notifications that PostgreSQL refuses although it stores others; nil if there are none.
    static func refused(_ contents: SpoolContents, limit: Int64, now: WallTime) -> Finding? {
        guard contents.refused.files > 0 else { return nil }
        let text =
            "PostgreSQL refuses \(counted(contents.refused.files, "notification")) (….refused.spool), "
            + "\(ByteCount(contents.refused.bytes))\(age(of: contents.refused, now))"
        let remedy =
            "remove the cause, which the log of siwad serve names, such as a trigger of yours; siwad tries again by itself"
        return isNearlyFull(contents, limit) ? .fail(.spool, text, remedy) : .warn(.spool, text, remedy)
    }

    static func disk(free: Int64, spoolLimit: Int64, used: Int64) -> Finding {
        let text = "the spool's file system has \(ByteCount(free)) left"
        let remedy = "make room, or lower SIWAD_SPOOL_LIMIT (\(ByteCount(spoolLimit)))"
        if free < 64 << 20 { return .fail(.disk, text, remedy) }
        return free < spoolLimit - used ? .warn(.disk, text, remedy) : .pass(.disk, text)
    }

    private static func age(of part: SpoolContents.Part, _ now: WallTime) -> String {
        part.oldest.map { ", the oldest for \(now.duration(since: $0).rounded)" } ?? ""
    }

    private static func isNearlyFull(_ contents: SpoolContents, _ limit: Int64) -> Bool {
        contents.bytes >= limit / 10 * 8
    }
}

extension Finding {
    /// Files with a secret. Other checks report a missing file.
    static func files(_ paths: [String]) -> [Finding] {
        let open = paths.filter { path in
            var status = stat()
            return stat(path, &status) == 0 && status.st_mode & (S_IROTH | S_IWOTH) != 0
        }
        let text = "it holds a secret, and every user of this machine can read or change it"
        let remedy = "run chmod o-rw on it; siwad's own user has to own it, or be in its group"
        return open.isEmpty
            ? [.pass(.files, "no file with a secret is open to other users")]
            : open.map { .warn(.files, text, remedy, subject: $0) }
    }

    static func databaseTLS(_ route: ServerEndpoint) -> Finding {
        if route.isLocal { return .pass(.databaseTLS, "PostgreSQL is on this machine") }
        if route.sslMode == "verify-full" {
            return .pass(.databaseTLS, "sslmode=verify-full: another server can't pass for PostgreSQL")
        }
        let server = VisibleText.visible("\(route.address ?? "") with sslmode=\(route.sslMode)")
        let text = "PostgreSQL is at \(server), so another server on the way could pass for it"
        let remedy =
            "set sslmode=verify-full in SIWAD_DATABASE_URL, and sslrootcert= to the file of the server's authority"
        return .warn(.databaseTLS, text, remedy)
    }

    /// Objects in the schema public can take precedence over the objects that the SQL of other programs means.
    static func publicSchema(isOpen: Bool) -> Finding {
        guard isOpen else { return .pass(.publicSchema, "only chosen roles may create objects in the schema public") }
        let text =
            "every role may create objects in the schema public, also functions that other programs call by mistake"
        let remedy = "run REVOKE CREATE ON SCHEMA public FROM PUBLIC as the owner of the database"
        return .warn(.publicSchema, text, remedy)
    }

    static func operations(_ address: HostAndPort) -> Finding {
        if address.isLoopback { return .pass(.operations, "\(address) is for this machine only") }
        let text = "other machines reach metrics and readiness at \(address), without TLS and without a password"
        let remedy = "set SIWAD_OPERATIONS_LISTEN to a loopback address, or let a firewall pass only those who need it"
        return .warn(.operations, text, remedy)
    }
}

/// The files in a spool directory, listed without its lock, which the daemon holds.
struct SpoolContents: Sendable, Equatable {
    struct Part: Sendable, Equatable {
        var files = 0
        var bytes: Int64 = 0
        var oldest: WallTime?

        fileprivate mutating func add(bytes size: Int64, writtenAt time: WallTime) {
            files += 1
            bytes += size
            oldest = min(oldest ?? time, time)
        }
    }

    var waiting = Part()
    /// Files with one notification each that the database refuses although it stores others.
    var refused = Part()
    /// Files that were renamed because they are torn or not siwad's.
    var setAside = 0
    var forged = 0
    /// Files that are not read because other users could have written them.
    var untrusted = 0
    var owner: uid_t = 0

    /// The bytes that count towards the limit.
    var bytes: Int64 { waiting.bytes + refused.bytes }

    init() {}

    /// nil if the directory can't be listed.
    init?(directory: String) {
        var place = stat()
        guard let names = try? FileManager.default.contentsOfDirectory(atPath: directory), stat(directory, &place) == 0
        else { return nil }
        owner = place.st_uid
        for name in names where !name.hasPrefix(".") {
            var status = stat()
            if lstat("\(directory)/\(name)", &status) == 0, status.st_mode & S_IFMT == S_IFREG,
                status.st_uid != owner || status.st_mode & 0o022 != 0
            {
                untrusted += 1
                continue
            }
            // A file is named after the microsecond at which it was written.
            if let stamp = Int64(name.prefix { $0 != "." }), name.hasSuffix(".spool") {
                let path = name.hasSuffix(".refused.spool") ? \Self.refused : \Self.waiting
                self[keyPath: path].add(bytes: Int64(status.st_size), writtenAt: WallTime(microseconds: stamp))
            }
            if name.hasSuffix(".corrupt") || name.hasSuffix(".foreign") { setAside += 1 }
            if name.hasSuffix(".forged") { forged += 1 }
        }
    }

    /// Free bytes on the file system of a directory; nil if the system does not report them.
    static func free(at directory: String) -> Int64? {
        var status = statvfs()
        guard statvfs(directory, &status) == 0 else { return nil }
        let (bytes, overflow) = Int64(clamping: status.f_bavail).multipliedReportingOverflow(by: Int64(status.f_frsize))
        return overflow ? .max : bytes
    }
}
