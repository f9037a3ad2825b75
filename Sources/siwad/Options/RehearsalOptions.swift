import ArgumentParser
import FoundationEssentials

/// Who changes something and why, where it can be tried without changing anything.
struct RehearsalOptions: ParsableArguments {
    @Flag(name: .customLong("dry-run"), help: "Say what would happen, and change nothing.")
    var dryRun = false
    @Option(
        name: .long,
        help: ArgumentHelp("Why; it lands in the audit. Required but for --dry-run.", valueName: "text")
    )
    var note: String?
    @Option(
        name: .customLong("operator"),
        help: ArgumentHelp("Who; the login name if it is left out.", valueName: "name")
    )
    var operatorName: String?

    /// Refuses what says nothing.
    func validate() throws {
        guard dryRun || note != nil else { throw ValidationError("--note must say why: it lands in the audit") }
        guard note?.contains(where: { !$0.isWhitespace }) ?? true else { throw ValidationError("--note must say why") }
        guard operatorName?.contains(where: { !$0.isWhitespace }) ?? true else {
            throw ValidationError("--operator must be a name")
        }
    }

    /// Who it is: the name that was given, else the login name.
    func name(environment: [String: String]) -> String {
        let names = [operatorName, environment["LOGNAME"], environment["USER"]]
        return names.compactMap(\.self).first { !$0.isEmpty } ?? ProcessInfo.processInfo.userName
    }
}
