import ArgumentParser
import Ingest
import Postgres
import Settings
import Terminal

/// `siwad dead-letters discard`
struct DeadLettersDiscardCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "discard",
        abstract: "Decide that open letters won't be processed. They stay on record.",
        discussion: "Example:\n  siwad dead-letters discard --app com.example.sold --note 'app sold in 2025'"
    )

    @OptionGroup var filter: DeadLetterFilterOptions
    @OptionGroup var rehearsal: RehearsalOptions
    @Flag(name: .long, help: "One JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses to discard everything by accident.
    func validate() throws { try filter.validateIsGiven() }

    func run(_ invocation: Invocation) async throws {
        try await DecisionOutput(.discard, json: json, invocation).carryOut(filter, rehearsal)
    }
}

/// `siwad dead-letters reopen`
struct DeadLettersReopenCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "reopen",
        abstract: "Take back that letters were discarded: they are open again.",
        discussion: "Example:\n  siwad dead-letters reopen --id 17 --note 'discarded by mistake'"
    )

    @OptionGroup var filter: DeadLetterFilterOptions
    @OptionGroup var rehearsal: RehearsalOptions
    @Flag(name: .long, help: "One JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses to reopen everything by accident.
    func validate() throws { try filter.validateIsGiven() }

    func run(_ invocation: Invocation) async throws {
        try await DecisionOutput(.reopen, json: json, invocation).carryOut(filter, rehearsal)
    }
}
