import Synchronization
import Terminal

@testable import siwad

/// The output and the exit code of a command line.
struct CommandResult: Sendable, Equatable {
    let status: CommandStatus
    let output: String
    let errors: String

    /// The lines of standard output.
    var lines: [String] { output.split(separator: "\n", omittingEmptySubsequences: false).dropLast().map(String.init) }
}

/// Runs a command line in this process, as the executable does.
func siwad(
    _ arguments: String...,
    environment: [String: String] = [:],
    style: OutputStyle = .plain
) async -> CommandResult {
    await siwadCommand(arguments, environment: environment, style: style)
}

/// Runs a command line given as a list of words.
///
/// - Parameters:
///   - style: of standard output.
///   - errorStyle: of standard error; nil: the same.
///   - room: the number of bytes that standard output accepts.
func siwadCommand(
    _ arguments: [String],
    environment: [String: String] = [:],
    style: OutputStyle = .plain,
    errorStyle: OutputStyle? = nil,
    room: Int = .max
) async -> CommandResult {
    let output = Collected()
    let errors = Collected()
    let console = Console(
        style: style,
        errorStyle: errorStyle ?? style,
        output: { text throws(OutputError) in
            guard output.text.utf8.count + text.utf8.count <= room else { throw OutputError("no room") }
            output.append(text)
        },
        error: { errors.append($0) }
    )
    let runner = CommandRunner(environment: environment, console: console, startLog: { _, _ in })
    let status = await runner.run(arguments)
    return CommandResult(status: status, output: output.text, errors: errors.text)
}

private final class Collected: Sendable {
    private let state = Mutex("")

    var text: String { state.withLock { $0 } }

    func append(_ text: String) {
        state.withLock { $0 += text }
    }
}
