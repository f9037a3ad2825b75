import ArgumentParser
import FoundationEssentials

/// Who changes something, and why: what the audit keeps.
struct OperatorOptions: ParsableArguments {
    @Option(name: .long, help: ArgumentHelp("Why; it lands in the audit.", valueName: "text"))
    var note: String

    @Option(
        name: .customLong("operator"),
        help: ArgumentHelp("Who; the login name if it is left out.", valueName: "name")
    )
    var operatorName: String?

    /// Refuses what says nothing.
    func validate() throws {
        guard note.contains(where: { !$0.isWhitespace }) else { throw ValidationError("--note must say why") }
        guard operatorName?.isEmpty != true else { throw ValidationError("--operator must be a name") }
    }

    /// Who it is.
    func name(environment: [String: String]) -> String {
        Self.name(operatorName, environment: environment)
    }

    /// The name that was given, else the login name.
    static func name(_ given: String?, environment: [String: String]) -> String {
        let login = [given, environment["LOGNAME"], environment["USER"]].compactMap { $0 }.first { !$0.isEmpty }
        return login ?? ProcessInfo.processInfo.userName
    }
}
