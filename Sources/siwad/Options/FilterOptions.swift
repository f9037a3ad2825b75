import AccountStore
import AppleTokens
import ArgumentParser
import Terminal

/// The options of every listing.
struct ListingOptions: ParsableArguments {
    @Flag(name: .long, help: "One JSON object per line.")
    var json = false

    // Unconditional, so that a negative number is refused as a number and not parsed as an option.
    @Option(name: .long, parsing: .unconditional, help: ArgumentHelp("Maximum number of rows.", valueName: "count"))
    var limit = 50

    func validate() throws {
        guard limit > 0 else { throw ValidationError("--limit must be at least 1") }
    }
}

struct AccountFilterOptions: ParsableArguments {
    @Option(name: .long, help: "Apple's identifier of the person.")
    var sub: String?
    @Option(name: .long, help: ArgumentHelp("Developer team.", valueName: "team-id"))
    var team: String?
    @Option(name: .long, help: ArgumentHelp("App group, by its primary App ID.", valueName: "app-id"))
    var app: String?

    /// Refuses a word that is not in a closed list.
    static func check(_ word: String?, _ name: String, _ words: [String]) throws {
        guard let word, !words.contains(word) else { return }
        throw ValidationError("\(name) is one of \(words.joined(separator: ", "))")
    }
}

/// Selects dead letters: the same options for every command.
struct DeadLetterFilterOptions: ParsableArguments {
    @Option(
        name: .long,
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("Number of a letter; repeatable.", valueName: "number")
    )
    var id: [Int64] = []
    @Option(name: .long, help: ArgumentHelp("Reason, such as unknown-audience.", valueName: "reason"))
    var reason: String?
    @Option(name: .long, help: TimeArgument.help("Received at or after"), transform: TimeArgument.init(parsing:))
    var since: TimeArgument?
    @Option(name: .long, help: TimeArgument.help("Received before"), transform: TimeArgument.init(parsing:))
    var until: TimeArgument?
    @Option(name: .long, help: ArgumentHelp("App: the token's aud.", valueName: "app-id"))
    var app: String?
    @Option(name: .long, help: "Event type; either spelling finds a deletion.")
    var type: String?
    @Option(name: .long, help: "Person: the token's sub.")
    var sub: String?
    @Flag(name: .long, help: "Every letter.")
    var all = false

    func validate() throws {
        try AccountFilterOptions.check(reason, "--reason", DeadLetterReason.allCases.map(\.rawValue))
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
            reason: reason.flatMap { DeadLetterReason(rawValue: $0) },
            since: since?.time,
            until: until?.time,
            app: app,
            eventType: type,
            subject: sub
        )
    }
}

struct DeadLetterStatusOptions: ParsableArguments {
    @Option(name: .long, help: "open, replayed, discarded or any.")
    var status: String?

    func validate() throws {
        try AccountFilterOptions.check(status, "--status", DeadLetterStatus.allCases.map(\.rawValue) + ["any"])
    }

    /// The status to select, or `usual` if none is given; nil: any.
    func value(default usual: DeadLetterStatus?) -> DeadLetterStatus? {
        guard let status else { return usual }
        return DeadLetterStatus(rawValue: status)
    }
}

/// A point in time on the command line: `2026-01-02T03:04:05Z`, `2026-01-02`, or seconds or milliseconds since 1970.
///
/// A time without a zone is in UTC, like the times in siwad's tables.
struct TimeArgument: Sendable {
    let time: WallTime

    init(parsing text: String) throws {
        guard let time = WallTime(iso8601: text) ?? WallTime(iso8601: text + "Z") else {
            throw ValidationError(
                "write 2026-01-02, 2026-01-02 03:04 or 2026-01-02T03:04:05Z, in UTC unless it ends in a zone such as "
                    + "+01:00, or seconds since 1970"
            )
        }
        self.time = time
    }

    /// The help of an option that takes a time.
    static func help(_ meaning: String, otherwise: String? = nil) -> ArgumentHelp {
        let form = "2026-01-02, or '2026-01-02 03:04' in UTC, or with a zone"
        return ArgumentHelp("\(meaning): \(form)\(otherwise.map { "; default: \($0)" } ?? "").", valueName: "time")
    }
}
