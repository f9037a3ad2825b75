import ArgumentParser
import Settings

/// What every command takes that reads or writes the database.
struct DatabaseOptions: ParsableArguments {
    @Option(
        name: .customLong("database-url"),
        help: ArgumentHelp("libpq URI or conninfo; a password is better in the environment.", valueName: "url")
    )
    var databaseURL: String?

    /// The settings among them.
    var flags: [SettingKey: String] {
        databaseURL.map { [.databaseURL: $0] } ?? [:]
    }
}

/// What every listing takes.
struct ListingOptions: ParsableArguments {
    @Flag(name: .long, help: "One JSON object per line.")
    var json = false

    // Whatever follows, so that a negative number is refused as one, not taken for an option.
    @Option(name: .long, parsing: .unconditional, help: ArgumentHelp("At most so many.", valueName: "count"))
    var limit = 50

    /// Refuses a limit that can't be met.
    func validate() throws {
        guard limit > 0 else { throw ValidationError("--limit must be at least 1") }
    }
}
