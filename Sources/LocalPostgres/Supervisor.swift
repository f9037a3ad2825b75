import Subprocess

/// Runs one server until this process stops it or ends.
///
/// The server is the child of a shell that reads its standard input: the kernel closes that pipe when this process ends,
/// even by SIGKILL, and then the shell stops the server.
final class Supervisor: Sendable {
    private let reports: AsyncStream<String>
    private let stopRequest: AsyncStream<Never>.Continuation
    /// Runs until the server has ended; ``stop()`` awaits it.
    private let running: Task<Void, Never>

    init(arguments: [String], user: ServerUser?) {
        let (reports, report) = AsyncStream.makeStream(of: String.self)
        let (stopRequests, stopRequest) = AsyncStream.makeStream(of: Never.self)
        self.reports = reports
        self.stopRequest = stopRequest
        running = Task {
            do {
                _ = try await Self.supervise(arguments, user, report, stopRequests, stopRequest)
            } catch {
                report.yield("failed: the supervising shell could not be run: \(error)")
            }
            report.finish()
        }
    }

    /// Waits until the server accepts connections.
    ///
    /// - Throws: `LocalPostgresError` with the server's last error; `CancellationError` after stopping the server again.
    func waitUntilReady() async throws {
        for await line in reports {
            if line == "ready" { return }
            throw LocalPostgresError(.notStarted, "PostgreSQL did not start: \(line)")
        }
        await stop()
        try Task.checkCancellation()
        throw LocalPostgresError(.notStarted, "PostgreSQL did not start and reported no cause; see its log")
    }

    /// Stops the server and waits until it has ended.
    func stop() async {
        stopRequest.finish()
        await running.value
    }

    private static func supervise(
        _ arguments: [String],
        _ user: ServerUser?,
        _ report: AsyncStream<String>.Continuation,
        _ stopRequests: AsyncStream<Never>,
        _ stopRequest: AsyncStream<Never>.Continuation
    ) async throws {
        let command = ServerUser.shell(user, script, arguments)
        var options = PlatformOptions()
        // So that Ctrl-C on a terminal reaches this process, but not the server.
        options.createSession = true
        _ = try await run(
            .name(command[0]),
            arguments: Arguments(Array(command.dropFirst())),
            // Without PGDATA, PGOPTIONS and similar variables, which would affect the server.
            environment: .custom(["PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"]),
            platformOptions: options,
            input: .inputWriter,
            output: .sequence,
            error: .discarded
        ) { execution in
            async let stopping: Void = {
                for await _ in stopRequests {}
                try await execution.standardInputWriter.finish()
            }()
            for try await line in execution.standardOutput.strings() {
                report.yield(line)
            }
            stopRequest.finish()
            try await stopping
        }
    }

    /// Parameters: directories of the programs, the cluster and the socket, `remove` or `keep`, the signal that stops the
    /// server, then the server's arguments. Prints `ready`, or the cause of the failure.
    static let script = """
        bin=$1 dir=$2 sockets=$3 afterwards=$4 signal=$5
        shift 5
        cd /
        umask 077
        exec 3<&0 </dev/null
        # The shell of a process that was killed may still initialize the directory, or stop its server.
        exec 9>"$dir/lock"
        flock -w 60 9 || { echo "another start of this cluster has not ended"; exit 1; }

        log=$dir/log
        log_start=$(wc -c <"$log" 2>/dev/null || echo 0)
        last_error() {
            tail -c "+$((log_start + 1))" "$log" | sed -n 's/^.*\\(FATAL\\|error\\): *//p' | tail -n 1
        }

        # The rename makes initialization all or nothing.
        if [ ! -f "$dir/data/PG_VERSION" ]; then
            rm -rf "$dir/data.new"
            "$bin/initdb" -D "$dir/data.new" --username=postgres --auth=trust --encoding=UTF8 --locale=C.UTF-8 \\
                --no-sync --no-instructions >>"$log" 2>&1 3<&- || { echo "initdb failed: $(last_error)"; exit 1; }
            mv "$dir/data.new" "$dir/data"
        fi

        # Data of another version needs that version's programs.
        made_by=/usr/lib/postgresql/$(cat "$dir/data/PG_VERSION")/bin
        if [ -x "$made_by/postgres" ]; then bin=$made_by; fi

        "$bin/postgres" -D "$dir/data" -k "$sockets" "$@" >>"$log" 2>&1 3<&- 9>&- &
        server=$!

        # Stops the server at the end of this shell's input. Repeats the signal, which may arrive before it is handled.
        (
            while read -r _; do :; done
            while kill -s "$signal" "$server" 2>/dev/null; do sleep 0.2; done
        ) <&3 >/dev/null 2>&1 &
        watcher=$!
        exec 3<&-

        # The first line of the lock file is the server's process, the eighth its state.
        while kill -0 "$server" 2>/dev/null; do
            state=$(sed -n '1p;8p' "$dir/data/postmaster.pid" 2>/dev/null | tr -d ' \\n')
            if [ "$state" = "${server}ready" ]; then echo ready; break; fi
            sleep 0.02
        done

        wait "$server"
        kill "$watcher" 2>/dev/null
        if [ "$state" != "${server}ready" ]; then echo "$(last_error)"; fi
        if [ "$afterwards" = remove ]; then rm -rf "$dir"; fi
        exit 0
        """
}
