import AppleTokens
import FoundationEssentials
import JOSE
import Subprocess
import Synchronization

#if canImport(System)
    import System
#else
    import SystemPackage
#endif

/// A running `siwad`. It ends with the test process at the latest, even if that is killed.
final class DaemonProcess: Sendable {
    /// The addresses in its ready line.
    struct Addresses: Sendable {
        /// URL of the notification endpoint.
        let notifications: String
        /// URL of the operations endpoint, without a path.
        let operations: String
        /// The duration of the start, as the daemon reports it.
        let after: String
    }

    struct Ended: Error, CustomStringConvertible {
        let description: String
    }

    private struct State {
        var processID: Int32?
        var log: [String] = []
        var output: [String] = []
        var status: Int32?
    }

    private let state = Mutex(State())
    private let signals: AsyncStream<String>.Continuation
    /// Runs until the process has ended; ``end()`` awaits it.
    private let running = Mutex<Task<Void, Never>?>(nil)

    /// Starts `siwad serve`, or another command.
    ///
    /// - Parameters:
    ///   - openFiles: the limit on open files and sockets; nil: that of the tests.
    ///   - command: a command that executes the rest of the command line.
    init(
        _ arguments: [String] = ["serve"],
        environment: [String: String],
        in directory: String = "/",
        openFiles: Int? = nil,
        under command: [String] = []
    ) {
        let limited = openFiles.map { ["/bin/sh", "-c", "ulimit -n \($0); exec \"$@\"", "sh"] } ?? []
        let arguments = command + limited + [Binary.path] + arguments
        let (stream, signals) = AsyncStream.makeStream(of: String.self)
        self.signals = signals
        let task = Task {
            do {
                try await supervise(arguments, environment, directory, stream)
            } catch {
                state.withLock { state in
                    state.log.append("the process could not be supervised: \(error)")
                    state.status = state.status ?? -1
                }
            }
            signals.finish()
        }
        running.withLock { $0 = task }
    }

    var processID: Int32? { state.withLock { $0.processID } }
    /// Lines on standard error.
    var log: [String] { state.withLock { $0.log } }
    /// Lines on standard output.
    var output: [String] { state.withLock { $0.output } }
    /// Its exit code, or 128 and the signal that ended it; nil while it runs.
    var status: Int32? { state.withLock { $0.status } }

    /// Waits until it reports that it is ready.
    ///
    /// - Throws: ``Ended`` with the last line of its log if it ends instead.
    func ready(within limit: Duration = .seconds(60)) async throws -> Addresses {
        var addresses: Addresses?
        try await eventually("the daemon to be ready", within: limit) {
            addresses = readyLine()
            if addresses == nil, let status {
                throw Ended(description: "ended with \(status) before it was ready: \(log.last ?? "without a message")")
            }
            return addresses != nil
        }
        guard let addresses else { throw TooLate("the daemon's addresses") }
        return addresses
    }

    /// Sends it a signal by name: `TERM`, `KILL`, `HUP`, `CONT`. It may come after this returns.
    func send(_ signal: String) {
        signals.yield(signal)
    }

    /// Sends it SIGSTOP, and waits until it is stopped.
    func stop() async throws {
        send("STOP")
        try await eventually("the process to be stopped") {
            guard let processID else { return false }
            let status = try String(contentsOfFile: "/proc/\(processID)/stat", encoding: .utf8)
            // The state follows the name in parentheses.
            return status.split(separator: ")").last?.hasPrefix(" T") ?? false
        }
    }

    /// Waits until it has ended.
    func end(within limit: Duration = .seconds(60)) async throws -> Int32 {
        try await eventually("the daemon to end", within: limit) { status != nil }
        await running.withLock { $0 }?.value
        return status ?? -1
    }

    /// Kills it with SIGKILL, and waits until it has ended.
    func kill() async {
        signals.yield("KILL")
        signals.finish()
        await running.withLock { $0 }?.value
    }

    // MARK: - Private parts

    private func readyLine() -> Addresses? {
        for line in log.reversed() where line.contains("\"ready\"") {
            guard let record = try? JSONValue(parsing: Array(line.utf8)), record["message"]?.string == "ready",
                let notifications = record["notifications"]?.string, let operations = record["operations"]?.string
            else { continue }
            let after = record["after"]?.string ?? ""
            return Addresses(notifications: notifications, operations: operations, after: after)
        }
        return nil
    }

    private func supervise(
        _ arguments: [String],
        _ environment: [String: String],
        _ directory: String,
        _ stream: AsyncStream<String>
    ) async throws {
        var options = PlatformOptions()
        // A separate session, so that Ctrl-C on a terminal reaches the tests and not the daemon.
        options.createSession = true
        let result = try await run(
            .path("/bin/sh"),
            arguments: Arguments(["-c", Self.script, "sh"] + arguments),
            environment: .siwad(environment),
            workingDirectory: FilePath(directory),
            platformOptions: options,
            input: .inputWriter,
            output: .sequence,
            error: .sequence
        ) { execution in
            async let signalling: Void = {
                for await signal in stream {
                    _ = try await execution.standardInputWriter.write("\(signal)\n")
                }
                try await execution.standardInputWriter.finish()
            }()
            async let reading: Void = {
                for try await line in execution.standardOutput.strings() { received(output: line) }
            }()
            for try await line in execution.standardError.strings() {
                state.withLock { $0.log.append(line) }
            }
            try await reading
            signals.finish()
            // The process may have just ended.
            try? await signalling
        }
        let status: Int32 =
            switch result.terminationStatus {
            case .exited(let code): code
            case .signaled(let signal): 128 + signal
            }
        state.withLock { $0.status = status }
    }

    private func received(output line: String) {
        state.withLock { state in
            if state.processID == nil {
                state.processID = Int32(line)
            } else {
                state.output.append(line)
            }
        }
    }

    /// Runs its arguments, prints their process id, and forwards the signals whose names it reads. At the end of its
    /// input it kills the process; the kernel closes the input if the tests are killed.
    private static let script = """
        exec 3<&0 </dev/null
        "$@" 3<&- &
        child=$!
        echo "$child"
        (
            while read -r signal; do kill -s "$signal" "$child" 2>/dev/null; done
            kill -s KILL "$child" 2>/dev/null
        ) <&3 >/dev/null 2>&1 &
        watcher=$!
        exec 3<&-
        wait "$child"
        status=$?
        kill "$watcher" 2>/dev/null
        exit "$status"
        """
}
