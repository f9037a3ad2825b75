import AccountStore
import AppleSimulator
import AppleTokens
import ArgumentParser
import Basics
import FoundationEssentials
import Settings
import Terminal

struct ListingOptions: ParsableArguments {
    @Flag(help: "One JSON object per line.")
    var json = false
    @Flag(help: "Every column, and no value cut to the width of the terminal.")
    var wide = false
    // Unconditional, so that a negative number is refused as a number and not parsed as an option.
    @Option(parsing: .unconditional, help: ArgumentHelp("Maximum number of rows.", valueName: "count"))
    var limit = 50
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        guard limit > 0 else { throw ValidationError("--limit must be at least 1") }
    }
}

struct AccountFilterOptions: ParsableArguments {
    @Option(help: "Apple's identifier of the person, or its beginning.")
    var sub: String?
    @Option(help: ArgumentHelp("Developer team.", valueName: "team-id"), completion: .teamID)
    var team: String?
    @Option(help: ArgumentHelp("App group, by its primary App ID.", valueName: "app-id"), completion: .appID)
    var app: String?
}

/// Dead letters by their numbers, as arguments or options.
struct DeadLetterIDOptions: ParsableArguments {
    @Argument(help: ArgumentHelp("Numbers of letters.", valueName: "number"), transform: Int64.init(numberArgument:))
    var numbers: [Int64] = []
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("Number of a letter; repeatable.", valueName: "number"),
        transform: Int64.init(numberArgument:)
    )
    var id: [Int64] = []

    /// Each number once, in the order given.
    var all: [Int64] { (numbers + id).uniqued() }

    /// The failure to report if only `matched` of the named letters matched; nil if all did.
    ///
    /// - Parameter kind: what they are not, such as `open letter that matches`.
    func failure(matched: Int, kind: String, kinds: String) -> CommandFailure? {
        let missing = all.count - matched
        guard missing > 0 else { return nil }
        let what = missing == 1 ? "is no \(kind)" : "are no \(kinds)"
        let list = nextCommand("dead-letters list \(all.map(String.init).joined(separator: " "))")
        return CommandFailure(.partlyFailed, "\(missing) of \(all.count) named \(what): \(list) shows their status")
    }
}

struct DeadLetterFilterOptions: ParsableArguments {
    @OptionGroup var ids: DeadLetterIDOptions
    @Option(help: ArgumentHelp("Why it was not processed.", valueName: "reason"))
    var reason: DeadLetterReason?
    @Option(parsing: .unconditional, help: WallTime.help("Received at or after"), transform: WallTime.init(argument:))
    var since: WallTime?
    @Option(parsing: .unconditional, help: WallTime.help("Received before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @Option(help: ArgumentHelp("App: the token's aud.", valueName: "app-id"), completion: .appID)
    var app: String?
    @Option(help: "Event type; either spelling finds a deletion.", completion: .eventType)
    var type: String?
    @Option(help: "Person: the token's sub, or its beginning: 8 characters or more to change something.")
    var sub: String?
    @Flag(help: "Every letter.")
    var all = false

    func validate() throws {
        guard !all || filter.isEmpty else {
            throw ValidationError("--all excludes the other filters: leave it out, or the others")
        }
    }

    /// The advice if nothing selects letters.
    var advice: String? {
        guard !all, filter.isEmpty else { return nil }
        return "select letters by number, --reason, --since, --until, --app, --type or --sub, or use --all"
    }

    func failure(matched: Int, status: DeadLetterStatus) -> CommandFailure? {
        let status = status.rawValue
        return ids.failure(
            matched: matched,
            kind: "\(status) letter that matches",
            kinds: "\(status) letters that match"
        )
    }

    var filter: DeadLetterFilter {
        DeadLetterFilter(
            ids: ids.all,
            reason: reason,
            since: since,
            until: until,
            app: app,
            eventType: type,
            subject: sub
        )
    }
}

struct DeadLetterStatusOptions: ParsableArguments {
    enum Choice: String, CaseIterable, ExpressibleByArgument {
        case open, replayed, discarded, any
    }

    @Option(help: "Status of the letters.")
    var status: Choice?

    /// The status to select, or `usual` if none is given; nil: any.
    func value(default usual: DeadLetterStatus?) -> DeadLetterStatus? {
        guard let status else { return usual }
        return DeadLetterStatus(rawValue: status.rawValue)
    }
}

extension DeadLetterReason: ExpressibleByArgument {}
extension DeadLetterGrouping: ExpressibleByArgument {}

/// The options of commands that change something: who and why, and a rehearsal without changes.
struct RehearsalOptions: ParsableArguments {
    @Flag(help: "Print what would happen, and change nothing; needs no --note.")
    var dryRun = false
    @OptionGroup var audit: AuditOptions

    var note: String? { audit.note }

    /// The advice if a note is missing. Each command reports it, together with what else is missing.
    var advice: String? { dryRun ? nil : audit.advice }

    /// As ``AuditOptions/name(environment:isRecorded:)``. A dry run records no operator.
    func name(environment: [String: String]) throws -> String {
        try audit.name(environment: environment, isRecorded: !dryRun)
    }
}

/// Who changes something, and why.
struct AuditOptions: ParsableArguments {
    // Unconditional, because a text may begin with a hyphen.
    @Option(parsing: .unconditional, help: ArgumentHelp("Why, for the audit. Required.", valueName: "text"))
    var note: String?
    @Option(
        name: .customLong("operator"),
        parsing: .unconditional,
        help: ArgumentHelp("Who, for the audit (default: the login name).", valueName: "name")
    )
    var operatorName: String?

    /// The advice if a note is missing.
    var advice: String? { note != nil ? nil : "--note must say why: it is kept in the audit" }

    func validate() throws {
        for (option, text) in [("--note", note), ("--operator", operatorName)] {
            // Probably the next option, in the place of a text that was forgotten.
            guard text == "-h" || text?.hasPrefix("--") == true else { continue }
            throw ValidationError("\(option) needs a text, which can't begin with two hyphens")
        }
        guard note?.contains(where: { !$0.isWhitespace }) ?? true else { throw ValidationError("--note must say why") }
        guard operatorName?.contains(where: { !$0.isWhitespace }) ?? true else {
            throw ValidationError("--operator must be a name")
        }
        guard !Self.isReserved(operatorName ?? "") else {
            throw ValidationError(
                "the operator name siwad is reserved for the daemon: pass the name of the person who decides with --operator"
            )
        }
    }

    /// The operator: the name that is given, else the login name. A name that is recorded must not be that of the daemon.
    func name(environment: [String: String], isRecorded: Bool = true) throws -> String {
        let names = [operatorName, environment["LOGNAME"], environment["USER"]]
        let name = names.compactMap(\.self).first { !$0.isEmpty } ?? ProcessInfo.processInfo.userName
        guard !isRecorded || !Self.isReserved(name) else {
            throw CommandFailure(
                .usage,
                "the login name siwad is reserved for the daemon",
                nextStep: "pass the name of the person who decides with --operator"
            )
        }
        return name
    }

    /// True for the name by which the daemon records its own actions.
    private static func isReserved(_ name: String) -> Bool {
        name.split(whereSeparator: \.isWhitespace).map { $0.lowercased() } == ["siwad"]
    }
}

struct EventOptions: ParsableArguments {
    @Option(help: ArgumentHelp("Private key, written by simulate keys.", valueName: "file"), completion: .file())
    var key: String
    @Option(
        help: "email-disabled, email-enabled, consent-revoked, account-deleted, or any other text.",
        completion: .eventType
    )
    var type: String
    @Option(help: "The person (default: a random one).")
    var sub: String?
    @Option(help: ArgumentHelp("Primary App ID.", valueName: "app-id"), completion: .appID)
    var app: String
    @Option(help: ArgumentHelp("Address of an email event.", valueName: "address"))
    var email: String?
    @Flag(help: "The address is a private relay address.")
    var privateEmail = false
    @Option(
        parsing: .unconditional,
        help: WallTime.help("When it happened", otherwise: "when it was issued"),
        transform: WallTime.init(argument:)
    )
    var eventTime: WallTime?
    @Option(
        parsing: .unconditional,
        help: WallTime.help("When Apple signed it", otherwise: "now"),
        transform: WallTime.init(argument:)
    )
    var issuedAt: WallTime?
    @Option(parsing: .unconditional, help: "Its identifier (default: a random one).")
    var jti: String?

    func validate() throws {
        guard !privateEmail || email != nil else { throw ValidationError("--private-email needs --email") }
    }

    func event(now: WallTime) -> SimulatedEvent {
        let issued = issuedAt ?? now
        // Not before the present: the default must revoke a consent that was given in the same second.
        let happened = eventTime ?? issued
        return SimulatedEvent(
            type: type,
            sub: sub ?? SimulatedEvent.randomSubject(),
            app: app,
            email: email,
            isPrivateEmail: email == nil ? nil : privateEmail,
            eventTime: happened.wholeMilliseconds,
            issuedAt: issued.wholeSeconds,
            id: jti ?? SimulatedEvent.randomID()
        )
    }
}

extension Array where Element: Hashable {
    /// Each element once, in the order of their first places.
    func uniqued() -> [Element] {
        var seen: Set<Element> = []
        return filter { seen.insert($0).inserted }
    }
}

/// Reports the advice on everything that a command line lacks, in one error.
func requireNothing(_ missing: String?...) throws {
    let advice = missing.compactMap(\.self)
    guard advice.isEmpty else { throw ValidationError(advice.joined(separator: "; ")) }
}

extension Int64 {
    /// A number that names something. The parser's own error about another text would not say what to write.
    init(numberArgument text: String) throws {
        guard let number = Int64(text) else { throw ValidationError("write a number, such as 17") }
        self = number
    }
}

extension WallTime {
    /// A time on the command line: `1h` (ago), `yesterday`, `2026-01-02T03:04:05Z`, `2026-01-02`, or seconds or milliseconds
    /// since 1970. Without a zone it is in UTC, like the times in siwad's tables.
    init(argument text: String) throws {
        // The options accept this as their value, so that the error is about the time and not about an unknown option.
        guard !text.hasPrefix("-") else {
            throw ValidationError("write a time without a minus sign, such as 1h (ago) or yesterday")
        }
        let now = WallTime.now()
        let today = WallTime(seconds: now.wholeSeconds - now.wholeSeconds % 86_400)
        switch text {
        case "now": self = now
        case "today": self = today
        case "yesterday": self = today - .seconds(86_400)
        default:
            // Seconds since 1973, or milliseconds since 2001. 2026 and 20261123 are meant as dates, and are no seconds.
            guard Int64(text) == nil || [9, 10, 13].contains(text.filter(\.isNumber).count) else {
                throw ValidationError(
                    "write a date with hyphens, such as 2026-11-23, or seconds since 1970 with all their digits"
                )
            }
            let time = WallTime(iso8601: text) ?? WallTime(iso8601: text + "Z")
            guard let time = time ?? Duration(short: text).map({ now - $0 }) else {
                throw ValidationError(
                    "write 2026-01-02, 2026-01-02 03:04 or 2026-01-02T03:04:05Z, in UTC unless it ends in a zone such as "
                        + "+01:00; a time ago such as 30m, 1h or 2d; today or yesterday; or seconds since 1970"
                )
            }
            self = time
        }
    }

    static func help(_ meaning: String, otherwise: String? = nil) -> ArgumentHelp {
        let form = "1h (ago), yesterday, 2026-01-02 or '2026-01-02 03:04' in UTC, or with a zone"
        return ArgumentHelp("\(meaning): \(form)\(otherwise.map { "; default: \($0)" } ?? "").", valueName: "time")
    }
}
