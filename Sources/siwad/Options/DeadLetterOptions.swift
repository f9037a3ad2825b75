import AccountStore
import AppleTokens
import ArgumentParser
import Settings
import Terminal

/// Which dead letters a command is about: one grammar for all of them.
struct DeadLetterFilterOptions: ParsableArguments {
    @Option(
        name: .long,
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("The letter of this number; repeatable.", valueName: "number")
    )
    var id: [Int64] = []
    @Option(name: .long, help: ArgumentHelp("Kept for this reason, such as unknown-audience.", valueName: "reason"))
    var reason: String?
    @Option(name: .long, help: TimeArgument.help("Received at or after"), transform: TimeArgument.init(parsing:))
    var since: TimeArgument?
    @Option(name: .long, help: TimeArgument.help("Received before"), transform: TimeArgument.init(parsing:))
    var until: TimeArgument?
    @Option(name: .long, help: ArgumentHelp("Sent for this app, the token's aud.", valueName: "app-id"))
    var app: String?
    @Option(name: .long, help: "Event type; either spelling finds a deletion.")
    var type: String?
    @Option(name: .long, help: "About this person, the token's sub.")
    var sub: String?
    @Flag(name: .long, help: "Every letter.")
    var all = false

    /// Refuses unknown reasons, and --all beside something narrower.
    func validate() throws {
        try AccountFilterOptions.check(reason, "--reason", DeadLetterReason.allCases.map(\.rawValue))
        guard !all || filter.isEmpty else { throw ValidationError("--all stands alone: leave it out, or the others") }
    }

    /// Refuses to be about every letter by accident.
    func validateIsGiven() throws {
        guard all || !filter.isEmpty else {
            throw ValidationError(
                "name letters by --id, --reason, --since, --until, --app, --type or --sub, or say --all"
            )
        }
    }

    /// What to say of letters that were named by --id and are none of those that matched; nil: there are none.
    ///
    /// - Parameter matched: how many letters matched.
    func failure(matched: Int, status: DeadLetterStatus) -> CommandFailure? {
        let named = Set(id).count
        guard named > matched else { return nil }
        let others = named - matched
        let what =
            others == 1
            ? "is no \(status.rawValue) letter that matches" : "are no \(status.rawValue) letters that match"
        return CommandFailure(
            .partlyFailed,
            "\(others) of \(named) named \(what): siwad dead-letters list --id shows how they stand"
        )
    }

    /// The filter.
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

/// Where the letters stand that a command looks at.
struct DeadLetterStatusOptions: ParsableArguments {
    @Option(name: .long, help: "open, replayed, discarded or any.")
    var status: String?

    /// Refuses a status that no letter has.
    func validate() throws {
        try AccountFilterOptions.check(status, "--status", DeadLetterStatus.allCases.map(\.rawValue) + ["any"])
    }

    /// The status that is looked for, or what is usual; nil: any.
    func value(default usual: DeadLetterStatus?) -> DeadLetterStatus? {
        guard let status else { return usual }
        return DeadLetterStatus(rawValue: status)
    }
}

/// The settings that decide what is accepted, as flags.
struct AcceptanceOptions: ParsableArguments {
    @Option(name: .long, help: ArgumentHelp("Apps accepted, as in SIWAD_APPS.", valueName: "apps"))
    var apps: String?
    @Option(
        name: .customLong("keys-url"),
        help: ArgumentHelp("Apple's key set, as in SIWAD_KEYS_URL.", valueName: "url")
    )
    var keysURL: String?

    /// Those that are given.
    var flags: [SettingKey: String] {
        let all: [(SettingKey, String?)] = [(.apps, apps), (.keysURL, keysURL)]
        return Dictionary(uniqueKeysWithValues: all.compactMap { key, text in text.map { (key, $0) } })
    }
}
