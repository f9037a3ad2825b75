import ArgumentParser
import Settings
import Telemetry
import Terminal

/// Runs one command line and turns whatever it throws into one line and an exit code.
struct CommandRunner {
    /// The environment of the process.
    let environment: [String: String]
    /// Where output and errors go.
    let console: Console
    /// Starts the process's log; a process can do that once.
    let startLog: @Sendable (LogLevel, LogFormat) -> Void

    /// Runs the command that the arguments name. Output that got lost is a failure of its own.
    func run(_ arguments: [String]) async -> CommandStatus {
        let status = await carryOut(arguments)
        guard let error = console.outputError else { return status }
        let failure = CommandFailure(
            .failed,
            "standard output can't be written: \(error.cause); what was printed is incomplete"
        )
        console.report(failure)
        return status == .done ? failure.status : status
    }

    private func carryOut(_ arguments: [String]) async -> CommandStatus {
        do {
            var parsed = try Siwad.parseAsRoot(arguments)
            guard let command = parsed as? any Command else {
                // The commands that only hold others print their help.
                try parsed.run()
                return .done
            }
            return await run(command)
        } catch {
            return report(error, arguments)
        }
    }

    private func run(_ command: any Command) async -> CommandStatus {
        do {
            let invocation = try Invocation(
                command: command,
                environment: environment,
                console: console,
                startLog: startLog
            )
            try await command.run(invocation)
            return .done
        } catch let error as SettingsError {
            return command.report(error, to: console) ?? report(error)
        } catch {
            return report(error)
        }
    }

    private func report(_ error: any Error, _ arguments: [String] = []) -> CommandStatus {
        if let failure = error as? CommandFailure ?? CommandFailure(knownCause: error) {
            console.report(failure)
            return failure.status
        }
        switch Siwad.exitCode(for: error) {
        case .success:
            console.print(Siwad.fullMessage(for: error))
            return .done
        case .validationFailure:
            console.report(CommandFailure(.usage, Self.usage(error, arguments)))
            return .usage
        default:
            console.report(CommandFailure(.failed, "\(error)"))
            return .failed
        }
    }

    /// The cause and where help is, in one line: `Unknown option '--tpye'; see 'siwad simulate token --help'`.
    ///
    /// An argument that looks like a secret that went astray is masked.
    private static func usage(_ error: any Error, _ arguments: [String]) -> String {
        var message = Siwad.message(for: error)
        // Of --name=value, the value is what a message quotes.
        let values = arguments.map { $0.hasPrefix("--") ? $0.drop { $0 != "=" }.dropFirst() : $0[...] }
        for argument in values where Redaction.holdsSecret(argument) {
            message = message.split(separator: argument, omittingEmptySubsequences: false).joined(
                separator: Redaction.mask
            )
        }
        let cause = message.split(whereSeparator: \.isNewline).joined(separator: " ")
        let help = Siwad.fullMessage(for: error).split(whereSeparator: \.isNewline).last { $0.contains("See '") }
        let sentence = cause.hasSuffix(".") ? String(cause.dropLast()) : cause
        guard let help, let start = help.firstIndex(of: "'"), let end = help.lastIndex(of: "'") else { return sentence }
        return "\(sentence): see \(help[start...end])"
    }
}
