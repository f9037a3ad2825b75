import AccountStore
import AppleSimulator
import AppleTokens
import ArgumentParser
import Basics
import FoundationEssentials
import Terminal

struct ListingOptions: ParsableArguments {
    @Flag(help: "One JSON object per line.")
    var json = false
    // Unconditional, so that a negative number is refused as a number and not parsed as an option.
    @Option(parsing: .unconditional, help: ArgumentHelp("Maximum number of rows.", valueName: "count"))
    var limit = 50
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        guard limit > 0 else { throw ValidationError("--limit must be at least 1") }
    }
}

struct AccountFilterOptions: ParsableArguments {
    @Option(help: "Apple's identifier of the person.")
    var sub: String?
    @Option(help: ArgumentHelp("Developer team.", valueName: "team-id"))
    var team: String?
    @Option(help: ArgumentHelp("App group, by its primary App ID.", valueName: "app-id"))
    var app: String?
}

struct DeadLetterFilterOptions: ParsableArguments {
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("Number of a letter; repeatable.", valueName: "number")
    )
    var id: [Int64] = []
    @Option(help: ArgumentHelp("Why it was not processed.", valueName: "reason"))
    var reason: DeadLetterReason?
    @Option(help: WallTime.help("Received at or after"), transform: WallTime.init(argument:))
    var since: WallTime?
    @Option(help: WallTime.help("Received before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @Option(help: ArgumentHelp("App: the token's aud.", valueName: "app-id"))
    var app: String?
    @Option(help: "Event type; either spelling finds a deletion.")
    var type: String?
    @Option(help: "Person: the token's sub.")
    var sub: String?
    @Flag(help: "Every letter.")
    var all = false

    func validate() throws {
        guard !all || filter.isEmpty else {
            throw ValidationError("--all excludes the other filters: leave it out, or the others")
        }
    }

    func validateIsGiven() throws {
        guard all || !filter.isEmpty else {
            throw ValidationError(
                "select letters by --id, --reason, --since, --until, --app, --type or --sub, or use --all"
            )
        }
    }

    /// The failure to report if only `matched` of the letters named by --id matched; nil if all did.
    func failure(matched: Int, status: DeadLetterStatus) -> CommandFailure? {
        let named = Set(id).count
        guard named > matched else { return nil }
        let isOne = named - matched == 1
        let what =
            isOne ? "is no \(status.rawValue) letter that matches" : "are no \(status.rawValue) letters that match"
        let step = "siwad dead-letters list --id shows their status"
        return CommandFailure(.partlyFailed, "\(named - matched) of \(named) named \(what): \(step)")
    }

    var filter: DeadLetterFilter {
        DeadLetterFilter(
            ids: id,
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
    @Flag(help: "Print what would happen, and change nothing.")
    var dryRun = false
    @Option(help: ArgumentHelp("Why, for the audit. Required without --dry-run.", valueName: "text"))
    var note: String?
    @Option(
        name: .customLong("operator"),
        help: ArgumentHelp("Who, for the audit (default: the login name).", valueName: "name")
    )
    var operatorName: String?

    func validate() throws {
        guard dryRun || note != nil else { throw ValidationError("--note must say why: it is kept in the audit") }
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

    /// The operator: the name that is given, else the login name, which must not be that of the daemon. A dry run records
    /// no operator.
    func name(environment: [String: String]) throws -> String {
        let names = [operatorName, environment["LOGNAME"], environment["USER"]]
        let name = names.compactMap(\.self).first { !$0.isEmpty } ?? ProcessInfo.processInfo.userName
        guard dryRun || !Self.isReserved(name) else {
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
    @Option(help: ArgumentHelp("Private key, written by simulate keys.", valueName: "file"))
    var key: String
    @Option(help: "email-disabled, email-enabled, consent-revoked, account-deleted, or any other text.")
    var type: String
    @Option(help: "The person (default: a random one).")
    var sub: String?
    @Option(help: ArgumentHelp("Primary App ID.", valueName: "app-id"))
    var app: String
    @Option(help: ArgumentHelp("Address of an email event.", valueName: "address"))
    var email: String?
    @Flag(help: "The address is a private relay address.")
    var privateEmail = false
    @Option(
        help: WallTime.help("When it happened", otherwise: "when it was issued"),
        transform: WallTime.init(argument:)
    )
    var eventTime: WallTime?
    @Option(help: WallTime.help("When Apple signed it", otherwise: "now"), transform: WallTime.init(argument:))
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

extension WallTime {
    /// A time on the command line: `2026-01-02T03:04:05Z`, `2026-01-02`, or seconds or milliseconds since 1970. Without a
    /// zone it is in UTC, like the times in siwad's tables.
    init(argument text: String) throws {
        guard let time = WallTime(iso8601: text) ?? WallTime(iso8601: text + "Z") else {
            throw ValidationError(
                "write 2026-01-02, 2026-01-02 03:04 or 2026-01-02T03:04:05Z, in UTC unless it ends in a zone such as "
                    + "+01:00, or seconds since 1970"
            )
        }
        self = time
    }

    static func help(_ meaning: String, otherwise: String? = nil) -> ArgumentHelp {
        let form = "2026-01-02, or '2026-01-02 03:04' in UTC, or with a zone"
        return ArgumentHelp("\(meaning): \(form)\(otherwise.map { "; default: \($0)" } ?? "").", valueName: "time")
    }
}
