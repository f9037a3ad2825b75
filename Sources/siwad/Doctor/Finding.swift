import AccountStore
import AppleTokens
import Basics
import JOSE
import Settings
import Terminal
import WebClient

/// The result of one check of `siwad doctor`.
struct Finding: Sendable, Equatable {
    enum Status: String, Sendable, CaseIterable {
        case pass
        case warn
        /// Notifications are not accepted or not applied, or soon will not be.
        case fail
    }

    /// The checks, in the order of the output.
    enum Check: String, Sendable, CaseIterable {
        case configuration
        case files
        case database
        case databaseTLS = "database-tls"
        case publicSchema = "public-schema"
        case schema
        case objects
        case writes
        case databaseClock = "database-clock"
        case partitions
        case maintenance
        case publication
        case sealingKeys = "sealing-keys"
        case tokenKeys = "token-keys"
        case appleKeys = "apple-keys"
        case clientSecret = "client-secret"
        case appleClient = "apple-client"
        case keys
        case keptKeys = "kept-keys"
        case appleClock = "apple-clock"
        case endpoint
        case readiness
        case instance
        case operations
        case application
        case certificate
        case spool
        case disk
        case deadLetters = "dead-letters"
        case notifications
        case endpoints
        case deliveries
    }

    let check: Check
    /// The app or file, if the check covers several.
    var subject: String?
    let status: Status
    /// Without a full stop.
    let detail: String
    var remedy: String?

    static func pass(_ check: Check, _ detail: String, subject: String? = nil) -> Finding {
        Finding(check: check, subject: subject, status: .pass, detail: detail)
    }

    static func warn(_ check: Check, _ detail: String, _ remedy: String, subject: String? = nil) -> Finding {
        Finding(check: check, subject: subject, status: .warn, detail: detail, remedy: remedy)
    }

    static func fail(_ check: Check, _ detail: String, _ remedy: String, subject: String? = nil) -> Finding {
        Finding(check: check, subject: subject, status: .fail, detail: detail, remedy: remedy)
    }

    static func fail(_ check: Check, _ failure: CommandFailure) -> Finding {
        guard let parts = failure.parts else { return .fail(check, failure.message, "see siwad doctor --help") }
        return .fail(check, parts.cause, parts.nextStep)
    }
}

// MARK: - The database

extension Finding {
    static func database(_ server: DatabaseHealth.Server, latency: Duration) -> Finding {
        let name = VisibleText.visible(server.database)
        let text = "PostgreSQL \(server.version), database \(name), \(ByteCount(server.bytes))"
        return .pass(.database, "\(text), answers in \(latency.milliseconds) ms")
    }

    static func schema(_ state: SchemaState) -> Finding {
        guard let problem = state.problem else {
            return .pass(.schema, "all \(state.migrations.count) migrations are applied")
        }
        return .fail(.schema, CommandFailure(.failed, problem))
    }

    static func objects(_ drift: SchemaDrift, count: Int) -> Finding {
        let differences = drift.missing.map { "\($0) is missing" } + drift.changed.map { "\($0) is another one" }
        guard differences.isEmpty else {
            let remedy = "restore what siwad migrate sql prints, or find out who changed it"
            return .fail(.objects, listing(differences, of: "differences"), remedy)
        }
        guard drift.foreign.isEmpty else {
            let objects = listing(drift.foreign.map { "\($0) is not siwad's" }, of: "objects")
            return .warn(.objects, objects, "keep what is yours in a schema of your own")
        }
        return .pass(.objects, "all \(count) tables, columns, constraints, indexes, views and functions are as made")
    }

    /// The clock of the database decides about sessions and retention.
    static func databaseClock(ahead: Duration, leeway: Duration) -> Finding {
        clock(.databaseClock, whose: "the database's", ahead: ahead, leeway: leeway)
    }

    /// The clock of Apple decides whether a notification is expired or not yet valid.
    static func appleClock(ahead: Duration, leeway: Duration) -> Finding {
        clock(.appleClock, whose: "Apple's", ahead: ahead, leeway: leeway)
    }

    /// - Parameter ahead: this machine's clock minus the other one.
    private static func clock(_ check: Check, whose: String, ahead: Duration, leeway: Duration) -> Finding {
        let size = ahead < .zero ? .zero - ahead : ahead
        if size <= .seconds(3) { return .pass(check, "this machine's clock agrees with \(whose) within 3 s") }
        let text = "this machine's clock is \(size.rounded) \(ahead < .zero ? "behind" : "ahead of") \(whose)"
        let remedy = "synchronise both by NTP"
        return size <= leeway ? .warn(check, text, remedy) : .fail(check, text, remedy)
    }

    /// - Parameter months: true for each month with a partition, from the present one to the second next.
    static func partitions(_ months: [Bool]) -> Finding {
        let remedy = "siwad serve creates them; look in its log for maintenance"
        if months.first == false { return .fail(.partitions, "the present month has no partition", remedy) }
        if months.contains(false) { return .warn(.partitions, "a month of the next two has no partition", remedy) }
        return .pass(.partitions, "the present month and the next two have theirs")
    }

    static func maintenance(_ times: [MaintenanceTask: WallTime], now: WallTime) -> Finding {
        let remedy = "siwad serve runs them hourly, sessions daily; check that it runs, and its log for maintenance"
        // Relative to the interval of each task.
        func overdue(_ done: (key: MaintenanceTask, value: WallTime)) -> Duration {
            now.duration(since: done.value) / done.key.intervals
        }
        let never = MaintenanceTask.allCases.filter { times[$0] == nil }.map(\.rawValue)
        guard never.isEmpty, let oldest = times.max(by: { overdue($0) < overdue($1) }) else {
            return .warn(.maintenance, "never done: \(never.joined(separator: ", "))", remedy)
        }
        let age = now.duration(since: oldest.value)
        let text = "\(oldest.key.rawValue) was last done \(age.rounded) ago"
        return overdue(oldest) > .seconds(3 * 3_600) ? .warn(.maintenance, text, remedy) : .pass(.maintenance, text)
    }

    static func publication(_ state: Publication.State) -> Finding {
        let remedy = "check that siwad serve runs with SIWAD_EFFECTS on, and look in its log for changes"
        guard state.belongsToCluster else {
            let text = "the database was restored from a dump, and no daemon has continued the log of changes"
            return .warn(.publication, text, remedy)
        }
        let text = state.position == 0 ? "the log of changes is empty" : "position \(state.position)"
        guard let age = state.age, age > .seconds(10) else {
            return .pass(.publication, "\(text); nothing waits for its publication")
        }
        let waiting = "\(text); a committed change has waited \(age.rounded) for its publication"
        guard let holder = state.publisher else { return .warn(.publication, waiting, remedy) }
        let release = """
            see in pg_stat_activity what it does: a round of siwad serve ends by itself, \
            SELECT pg_terminate_backend(\(holder)) ends anything else
            """
        return .warn(.publication, "\(waiting); server process \(holder) has locked siwa.publication", release)
    }

    static func sealingKeys(_ secrets: SealedSecrets) -> Finding {
        let (total, name) = (counted(secrets.count, "secret"), SettingKey.sealingKeys.environmentName)
        let putBack = "put the missing key back into \(name)"
        guard secrets.isReadable else {
            return .pass(.sealingKeys, "not checked: this role may not read secrets, only siwad_daemon may")
        }
        guard let keys = secrets.keys else {
            guard secrets.count == 0 else { return .fail(.sealingKeys, "\(total) sealed, and no key", "set \(name)") }
            return .pass(.sealingKeys, "no key, and no secret that needs one")
        }
        if let problem = secrets.firstProblem {
            let stopped = secrets.stoppedEndpoints.joined(separator: ", ")
            let effect = stopped.isEmpty ? "" : "; nothing is sent to \(stopped)"
            return .fail(.sealingKeys, "\(secrets.unopened) of \(total) can't be opened: \(problem)\(effect)", putBack)
        }
        let old = keys.names.dropFirst()
        let waiting = old.filter { secrets.counts[$0] != nil }.map { "\($0): \(secrets.counts[$0] ?? 0)" }
        guard waiting.isEmpty else {
            let text = "all \(total) open, some with old keys (\(waiting.joined(separator: ", ")))"
            let rotate = nextCommand("sealing rotate --note '…'")
            return .warn(.sealingKeys, text, "\(rotate) seals them with \(keys.first)")
        }
        // Refresh tokens and codes may still need it: see `tokenKeys`.
        let spare = old.isEmpty ? "" : "; no secret of an endpoint needs \(old.joined(separator: ", ")) any more"
        return .pass(.sealingKeys, "\(total), all sealed with \(keys.first)\(spare)")
    }

    /// The keys of refresh tokens. Only `siwad sealing rotate` opens the tokens, because there is one for each person.
    ///
    /// The finding also says when no secret at all needs an old key, so that the operator can remove it.
    ///
    /// - Parameters:
    ///   - codes: the codes that wait to be traded; each is sealed with the key that was the first at that time.
    ///   - secretsMayNeedOldKeys: false if every secret of an endpoint was opened, and the first key seals them all.
    static func tokenKeys(
        _ counts: [RefreshTokenCount],
        codes: Int,
        secretsMayNeedOldKeys: Bool,
        _ keys: SealingKeys?
    ) -> Finding {
        let (ring, name) = (keys?.names ?? [], SettingKey.sealingKeys.environmentName)
        let old = ring.dropFirst()
        let oldNames = old.joined(separator: ", ")
        let needed =
            codes > 0 && !old.isEmpty
            ? "; \(counted(codes, "code")) that Apple has not answered may need \(oldNames) for up to five minutes"
            : nil
        let nothing = old.isEmpty || secretsMayNeedOldKeys ? nil : "; nothing needs \(oldNames) any more"
        guard !counts.isEmpty else { return .pass(.tokenKeys, "no refresh token\(needed ?? nothing ?? "")") }
        func total(_ isCounted: (RefreshTokenCount) -> Bool) -> Int {
            counts.filter(isCounted).map(\.count).reduce(0, +)
        }
        func text(_ names: [String]) -> String {
            names.map { name in "\(name): \(total { $0.keyName == name && $0.state != .unreadable })" }
                .joined(separator: ", ")
        }
        let all = counted(total { _ in true }, "refresh token")
        let used = Set(counts.filter { $0.state != .unreadable }.map(\.keyName))
        let missing = used.subtracting(ring).sorted()
        guard missing.isEmpty else {
            let putBack = "put the missing key back into \(name)"
            return .fail(.tokenKeys, "\(all), some with keys that \(name) lacks (\(text(missing)))", putBack)
        }
        let rotate = nextCommand("sealing rotate --note '…'")
        let unreadable = total { $0.state == .unreadable }
        guard unreadable == 0 else {
            let remedy = "put their key back and run \(rotate), or let the people sign in again"
            let keys = Set(counts.filter { $0.state == .unreadable }.map(\.keyName)).sorted().joined(separator: ", ")
            let cause = "no key opened them (sealed with \(keys))"
            return .warn(.tokenKeys, "\(unreadable) of \(all) unreadable: \(cause)", remedy)
        }
        let waiting = old.filter(used.contains)
        guard waiting.isEmpty, let first = ring.first else {
            return .warn(.tokenKeys, "\(all), some with old keys (\(text(waiting)))", "\(rotate) seals them again")
        }
        let spare = old.isEmpty ? "" : "; none needs \(oldNames) any more"
        return .pass(.tokenKeys, "\(all), all sealed with \(first)\(needed ?? nothing ?? spare)")
    }

    /// The key set that the daemon last stored from the URL in force.
    static func keptKeys(_ keptAt: WallTime?, refresh: Duration, maximumAge: Duration, now: WallTime) -> Finding {
        let remedy = "siwad serve fetches them; see that it runs, and look in its log for the key set"
        guard let keptAt else {
            return .warn(.keptKeys, "no key set of SIWAD_KEYS_URL was ever kept in the database", remedy)
        }
        let age = now.duration(since: keptAt)
        let text = "the database's key set was fetched \(age.rounded) ago"
        guard age < maximumAge else { return .fail(.keptKeys, "\(text) and is no longer trusted", remedy) }
        return age > refresh * 3 ? .warn(.keptKeys, text, remedy) : .pass(.keptKeys, text)
    }

    static func deadLetters(_ letters: DatabaseHealth.OpenLetters, limit: Int, now: WallTime) -> Finding {
        guard let oldest = letters.oldest else { return .pass(.deadLetters, "none is open") }
        let counts = letters.counts.map { "\($0.count) \($0.reason)" }.joined(separator: ", ")
        let text = "\(counts) open, the oldest for \(now.duration(since: oldest).rounded)"
        let list = nextCommand("dead-letters list")
        if let full = letters.counts.first(where: { $0.count >= limit && $0.reason != "keys-unavailable" }) {
            let limited = "\(full.reason) is at the limit of \(limit), so Apple is answered 503"
            return .fail(.deadLetters, "\(text); \(limited)", "\(list) shows them; replay or discard them")
        }
        return .warn(.deadLetters, text, "\(list) shows them, and show with a number explains one")
    }

    /// The age of each app's last notification. Apple does not report a wrong URL.
    static func notifications(_ audiences: AudienceMap, last: [AppID: WallTime], now: WallTime) -> [Finding] {
        let remedy =
            "see that the URL is entered for this App ID at developer.apple.com; Apple never says when it is not"
        return audiences.groups.map { group in
            let app = group.app.rawValue
            guard let time = last[group.app] else {
                return .warn(.notifications, "none is among the latest", remedy, subject: app)
            }
            let age = now.duration(since: time)
            let text = "the last one came \(age.rounded) ago"
            return age > .seconds(30 * 86_400)
                ? .warn(.notifications, text, remedy, subject: app) : .pass(.notifications, text, subject: app)
        }
    }

    /// One for each endpoint.
    ///
    /// - Parameter addressFailures: why siwad would not connect to it, by the endpoint's id.
    static func endpoints(
        _ overviews: [EndpointOverview],
        addressFailures: [Int32: EndpointClient.Failure],
        now: WallTime
    ) -> [Finding] {
        guard !overviews.isEmpty else { return [.pass(.endpoints, "none")] }
        return overviews.map { overview in
            let name = overview.endpoint.name
            func since(_ time: WallTime?) -> String {
                time.map { ", the oldest for \(now.duration(since: $0).rounded)" } ?? ""
            }
            let behind = "\(overview.behind) behind\(since(overview.oldestAt))"
            let failed =
                overview.retry > 0 ? "; \(overview.retry) to be tried again\(since(overview.oldestRetryAt))" : ""
            let why = overview.why(now: now).map { " (\($0))" } ?? ""
            let text = "\(overview.status)\(why), \(behind)\(failed)"
            func finding(_ status: Status, _ detail: String, _ remedy: String) -> Finding {
                Finding(check: .endpoints, subject: name, status: status, detail: detail, remedy: remedy)
            }
            if overview.endpoint.status == .disabled {
                let resume = nextCommand("endpoints resume \(name) --note '…'")
                return finding(.fail, text, "repair the receiver, then \(resume)")
            }
            if let failure = addressFailures[overview.endpoint.id] {
                let edit = nextCommand("endpoints edit \(name) --url … --note '…'")
                let remedy = "\(failure.remedy ?? "check the URL and this machine's name server"), or \(edit)"
                // An unknown host may be a passing fault of the name server, and nothing is sent during a pause.
                let isCertain = failure.reason == .blocked && overview.endpoint.status == .enabled
                return finding(isCertain ? .fail : .warn, "\(text); \(failure.cause)", remedy)
            }
            let oldest = [overview.oldestAt, overview.oldestRetryAt].compactMap(\.self).min {
                $0.microseconds < $1.microseconds
            }
            let isLate = oldest.map { now.duration(since: $0) > .seconds(3_600) } ?? false
            guard overview.isOpen || isLate else { return .pass(.endpoints, text, subject: name) }
            return finding(.warn, text, "\(nextCommand("endpoints show \(name)")) explains it")
        }
    }

    static func deliveries(dead: Int) -> Finding {
        guard dead > 0 else { return .pass(.deliveries, "none is dead") }
        let list = nextCommand("deliveries list")
        return .warn(.deliveries, "\(dead) dead", "\(list) shows them; retry or discard them")
    }

    private static func listing(_ items: [String], of noun: String) -> String {
        let first = items.prefix(3).joined(separator: ", ")
        return items.count > 3 ? "\(items.count) \(noun): \(first), …" : first
    }
}

struct Report: Sendable, Equatable, CommandOutput {
    let findings: [Finding]

    var isPassed: Bool { findings.allSatisfy { $0.status != .fail } }

    init(_ findings: [Finding]) {
        let order = Dictionary(uniqueKeysWithValues: Finding.Check.allCases.enumerated().map { ($1, $0) })
        self.findings = findings.enumerated().sorted { one, other in
            (order[one.element.check] ?? 0, one.offset) < (order[other.element.check] ?? 0, other.offset)
        }.map(\.element)
    }

    func lines(style: OutputStyle) -> [String] {
        let width = Finding.Check.allCases.map(\.rawValue.count).max() ?? 0
        return findings.flatMap { finding in
            let mark =
                switch finding.status {
                case .pass: style.painted("✓", .green)
                case .warn: style.painted("⚠", .yellow)
                case .fail: style.painted("✗", .red)
                }
            let subject = finding.subject.map { "\($0): " } ?? ""
            let remedy = finding.remedy.map { ": \($0)" } ?? ""
            return style.check(mark, finding.check.rawValue, nameWidth: width, subject + finding.detail + remedy)
        }
    }

    var json: [JSONText] {
        let columns: [Column<Finding>] = [
            .init("check", \.check.rawValue), .init("subject", \.subject), .init("status", \.status.rawValue),
            .init("detail", \.detail), .init("remedy", \.remedy),
        ]
        return columns.objects(of: findings)
    }
}

/// `1 team`, `2 teams`
func counted(_ number: Int, _ noun: String) -> String {
    "\(number) \(number == 1 ? noun : plural(noun))"
}

/// `teams`, `deliveries`
func plural(_ noun: String) -> String {
    noun.hasSuffix("ry") ? noun.dropLast() + "ies" : noun + "s"
}

/// A number of bytes in a readable unit: `17 KiB`, `2.4 GiB`.
struct ByteCount: CustomStringConvertible {
    private let bytes: Int64

    init(_ bytes: Int64) {
        self.bytes = bytes
    }

    var description: String {
        var (value, unit) = (bytes, "B")
        var tenths: Int64 = 0
        for next in ["KiB", "MiB", "GiB", "TiB"] where value >= 1_024 {
            tenths = value % 1_024 * 10 / 1_024
            (value, unit) = (value / 1_024, next)
        }
        return value < 10 && tenths > 0 ? "\(value).\(tenths) \(unit)" : "\(value) \(unit)"
    }
}

extension Duration {
    var milliseconds: Int64 { Int64(self / .milliseconds(1)) }

    /// In the largest unit in which it is at least 2: `90 s`, `36 h`, `3 d`. A negative duration counts as 0.
    var rounded: String {
        let seconds = max(0, components.seconds)
        return switch seconds {
        case ..<120: "\(seconds) s"
        case ..<7_200: "\(seconds / 60) min"
        case ..<172_800: "\(seconds / 3_600) h"
        default: "\(seconds / 86_400) d"
        }
    }
}
