import AppleClient
import AppleTokens
import JOSE
import Settings

/// How what is outside of the database is judged.
extension Finding {
    /// What the key set's URL answered.
    static func keys(_ bytes: [UInt8], from url: String) -> Finding {
        do throws(JOSEError) {
            let set = try JSONWebKeySet(parsing: bytes)
            let text = "\(counted(set.keys.count, "key")) at \(url)"
            guard let ignored = set.ignored.first else { return .pass(.keys, text) }
            return .warn(
                .keys,
                "\(text), and \(set.ignored.count) that can't be used, the first because \(ignored.reason)",
                "nothing, as long as notifications are accepted"
            )
        } catch {
            return .fail(.keys, "what \(url) answers is no key set (\(error))", "check SIWAD_KEYS_URL")
        }
    }

    /// What the notification endpoint answered to GET, which it must refuse.
    static func endpoint(_ answer: LocalProbe.Response, url: String) -> Finding {
        let remedy =
            "see what listens there, and that SIWAD_LISTEN and SIWAD_NOTIFICATION_PATH are those of siwad serve"
        switch (answer.status, answer.allow) {
        case (405, "POST"):
            return .pass(.endpoint, "\(url) answers, in \(answer.latency.milliseconds) ms")
        case (404, _):
            return .fail(.endpoint, "\(url) is not the path that is served", remedy)
        default:
            return .fail(.endpoint, "\(url) answers \(answer.status) to GET instead of 405: it is not siwad", remedy)
        }
    }

    /// What `/readyz?verbose` answered.
    static func readiness(_ answer: LocalProbe.Response, url: String) -> Finding {
        if answer.status == 200 { return .pass(.readiness, "siwad serve accepts notifications durably") }
        let remedy = "siwad serve says in its log what keeps it"
        let failed = answer.body.split(separator: "\n").filter { $0.hasPrefix("[-]") }.joined(separator: ", ")
        return .fail(.readiness, "\(url) answers \(answer.status)\(failed.isEmpty ? "" : ": ")\(failed)", remedy)
    }

    /// A certificate that is valid until a time, in seconds since 1970.
    static func certificate(validUntil expiry: Int64, now: WallTime) -> Finding {
        let left = WallTime(seconds: expiry).duration(since: now)
        let day = WallTime(seconds: expiry).column.prefix(10)
        let remedy = "renew it; siwad serve reads the files again by itself"
        if left <= .zero { return .fail(.certificate, "it expired on \(day)", remedy) }
        if left < .seconds(14 * 86_400) { return .warn(.certificate, "it expires in \(left.rounded)", remedy) }
        return .pass(.certificate, "valid until \(day)")
    }

    /// No certificate: somebody else ends TLS.
    static let noCertificate = Finding.pass(.certificate, "none: a proxy speaks https for siwad")

    /// No spool.
    static let noSpool = Finding.pass(.spool, "none: while PostgreSQL is away, Apple is answered 503")

    /// What waits in the spool.
    static func spool(_ contents: SpoolContents, limit: Int64, now: WallTime) -> Finding {
        let waiting = "\(counted(contents.waiting.files, "file")) waiting, \(ByteCount(contents.waiting.bytes))"
        if contents.forged > 0 {
            return .fail(
                .spool,
                "\(counted(contents.forged, "notification")) with a bad signature (….forged), none applied; \(waiting)",
                "find out who else writes to the directory, keep them out, then remove the files"
            )
        }
        if contents.untrusted > 0 {
            return .fail(
                .spool,
                "\(counted(contents.untrusted, "file")) not read because others could have written them; \(waiting)",
                "if siwad wrote them, give them to its user alone (chown, chmod 600); else remove them"
            )
        }
        if contents.setAside > 0 {
            return .warn(
                .spool,
                "\(counted(contents.setAside, "file")) set aside, torn or nothing of siwad's; \(waiting)",
                "look at them; a torn one may hold tokens that can be sent again"
            )
        }
        guard contents.waiting.files > 0 else {
            return .pass(.spool, contents.refused.files == 0 ? "empty" : "nothing else waits")
        }
        let text = waiting + age(of: contents.waiting, now)
        let remedy = "they go into PostgreSQL when it is back; see that siwad serve can reach it"
        return isNearlyFull(contents, limit) ? .fail(.spool, text, remedy) : .warn(.spool, text, remedy)
    }

    /// What PostgreSQL refuses while it takes others; nil if there is none.
    static func refused(_ contents: SpoolContents, limit: Int64, now: WallTime) -> Finding? {
        guard contents.refused.files > 0 else { return nil }
        let text =
            "PostgreSQL refuses \(counted(contents.refused.files, "notification")) (….refused.spool), "
            + "\(ByteCount(contents.refused.bytes))\(age(of: contents.refused, now))"
        let remedy =
            "remove the cause, which stands in the log of siwad serve: a trigger of yours, say; what is refused is "
            + "tried again by itself"
        return isNearlyFull(contents, limit) ? .fail(.spool, text, remedy) : .warn(.spool, text, remedy)
    }

    /// The file system of the spool.
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
