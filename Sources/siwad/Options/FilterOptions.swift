import AccountStore
import AppleTokens
import ArgumentParser
import Terminal

/// The options of every listing.
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

/// Selects dead letters: the same options for every command.
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

    /// Refuses to select every letter by accident.
    func validateIsGiven() throws {
        guard all || !filter.isEmpty else {
            throw ValidationError(
                "select letters by --id, --reason, --since, --until, --app, --type or --sub, or use --all"
            )
        }
    }

    /// The failure to report if letters named by --id did not match; nil if all did.
    ///
    /// - Parameter matched: the number of letters that matched.
    func failure(matched: Int, status: DeadLetterStatus) -> CommandFailure? {
        let named = Set(id).count
        guard named > matched else { return nil }
        let others = named - matched
        let what =
            others == 1
            ? "is no \(status.rawValue) letter that matches" : "are no \(status.rawValue) letters that match"
        return CommandFailure(
            .partlyFailed,
            "\(others) of \(named) named \(what): siwad dead-letters list --id shows their status"
        )
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

    /// The help of an option that takes a time.
    static func help(_ meaning: String, otherwise: String? = nil) -> ArgumentHelp {
        let form = "2026-01-02, or '2026-01-02 03:04' in UTC, or with a zone"
        return ArgumentHelp("\(meaning): \(form)\(otherwise.map { "; default: \($0)" } ?? "").", valueName: "time")
    }
}
