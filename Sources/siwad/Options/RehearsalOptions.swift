import ArgumentParser
import FoundationEssentials
import Terminal

/// The options of commands that change something: who and why, and a rehearsal without changes.
struct RehearsalOptions: ParsableArguments {
    /// The name by which the daemon records its own actions.
    private static let reservedName = "siwad"

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

    /// The operator: the name that is given, else the login name.
    ///
    /// - Throws: `CommandFailure` if the login name is that of the daemon, except for a dry run, which records no operator.
    func name(environment: [String: String]) throws -> String {
        let names = [operatorName, environment["LOGNAME"], environment["USER"]]
        let name = names.compactMap(\.self).first { !$0.isEmpty } ?? ProcessInfo.processInfo.userName
        guard dryRun || !Self.isReserved(name) else {
            throw CommandFailure(
                .usage,
                cause: "the login name siwad is reserved for the daemon",
                nextStep: "pass the name of the person who decides with --operator"
            )
        }
        return name
    }

    private static func isReserved(_ name: String) -> Bool {
        name.split(whereSeparator: \.isWhitespace).map { $0.lowercased() } == [reservedName]
    }
}
