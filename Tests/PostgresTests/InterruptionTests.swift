import Foundation
import Postgres
import TestSupport
import Testing

@Suite("Deadlines and cancellation", .timeLimit(.minutes(5)))
struct InterruptionTests {
    private static let sleep = Statement(once: "SELECT pg_sleep(600)")
    /// Enough for everything that is not deliberately slow, also on a busy machine.
    private static let ample = Duration.seconds(2)
    /// A table whose rows make COMMIT take longer than that.
    private static let slowCommit = """
        CREATE TABLE public.t (n integer);
        CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(3); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON public.t DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.dawdle()
        """

    /// A table whose rows make COMMIT wait for an advisory lock.
    private static let heldCommit = slowCommit.replacing("pg_sleep(3)", with: "pg_advisory_xact_lock_shared(1)")

    /// The number of statements in this database that wait for an advisory lock.
    private static let waitingCount = """
        SELECT count(*) FROM pg_stat_activity
        WHERE wait_event = 'advisory' AND datname = current_database()
        """

    @Test("When the deadline passes, the statement is cancelled on the server, and the connection stays usable.")
    func deadline() async throws {
        try await withConnection { connection async throws in
            let error = await postgresError {
                try await connection.withSession(deadline: .milliseconds(50)) { session throws(PostgresError) in
                    _ = try session.execute(Self.sleep)
                }
            }
            #expect(error?.code == .timedOut)
            #expect(error?.isRetryable == true)
            #expect(!connection.isClosed)
            #expect(try await connection.integer("SELECT 1") == 1)
        }
    }

    /// PostgreSQL ignores a cancel request that arrives before the backend has started the statement.
    @Test("A statement that PostgreSQL starts only after the first cancel request is cancelled by a later one.")
    func startedLate() async throws {
        try await withConnection { connection async throws in
            let backend = pid_t(try await connection.integer("SELECT pg_backend_pid()"))
            #expect(kill(backend, SIGSTOP) == 0)
            // In every case, so that the database can be dropped.
            defer { kill(backend, SIGCONT) }
            async let error = postgresError {
                try await connection.withSession(deadline: .seconds(1)) { session throws(PostgresError) in
                    _ = try session.execute(Self.sleep)
                }
            }
            while try !Self.hasPending(SIGINT, backend) { await Task.yield() }
            #expect(kill(backend, SIGCONT) == 0)
            #expect(await error?.code == .timedOut)
            #expect(try await connection.integer("SELECT pg_backend_pid()") == backend)
        }
    }

    /// True if a signal is pending for a stopped process (`proc(5)`: `SigPnd` for a thread, `ShdPnd` for the process).
    private static func hasPending(_ signal: Int32, _ process: pid_t) throws -> Bool {
        let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
        return status.split(separator: "\n").contains { line in
            let field = line.split(separator: "\t")
            guard field.count == 2, ["SigPnd:", "ShdPnd:"].contains(field[0]) else { return false }
            return (UInt64(field[1], radix: 16) ?? 0) & 1 << UInt64(signal - 1) != 0
        }
    }

    @Test("A transaction is rolled back when the deadline passes.")
    func deadlineInTransaction() async throws {
        try await withConnection { connection in
            try await connection.script("CREATE TABLE public.t (n integer)")
            let error = await postgresError {
                try await connection.transaction(deadline: .milliseconds(50)) { session throws(PostgresError) in
                    _ = try session.execute(Statement(once: "INSERT INTO public.t VALUES (1)"))
                    _ = try session.execute(Self.sleep)
                }
            }
            #expect(error?.code == .timedOut)
            #expect(try await connection.integer("SELECT count(*) FROM public.t") == 0)
        }
    }

    @Test("No statement starts after the deadline, not even COMMIT.")
    func deadlineBetween() async throws {
        try await withConnection { connection in
            try await connection.script("CREATE TABLE public.t (n integer)")
            let error = await postgresError {
                try await connection.transaction(deadline: .milliseconds(20)) { session throws(PostgresError) in
                    _ = try session.execute(Statement(once: "INSERT INTO public.t VALUES (1)"))
                    let end = ContinuousClock.now + .milliseconds(25)
                    while ContinuousClock.now < end {}
                }
            }
            #expect(error?.code == .timedOut)
            #expect(try await connection.integer("SELECT count(*) FROM public.t") == 0)
        }
    }

    @Test("A COMMIT that was sent may take longer than the deadline.")
    func slowCommit() async throws {
        try await withConnection { connection in
            try await connection.script(Self.slowCommit)
            try await connection.transaction(deadline: Self.ample) { session throws(PostgresError) in
                _ = try session.execute(Statement(once: "INSERT INTO public.t VALUES (1)"))
            }
            #expect(try await connection.integer("SELECT count(*) FROM public.t") == 1)
        }
    }

    @Test("A COMMIT without an answer is reported as an unknown outcome.")
    func unansweredCommit() async throws {
        try await TestDatabase.with { database in
            var settings = database.settings
            settings.grace = .milliseconds(50)
            let connection = try await PostgresConnection.connect(settings)
            try await connection.script(Self.slowCommit)
            let error = await postgresError {
                try await connection.transaction(deadline: Self.ample) { session throws(PostgresError) in
                    _ = try session.execute(Statement(once: "INSERT INTO public.t VALUES (1)"))
                }
            }
            #expect(error?.code == .connectionLost)
            #expect(error?.isOutcomeUnknown == true)
            #expect(connection.isClosed)
        }
    }

    @Test("Cancelling the task cancels the running statement, and the connection stays usable.")
    func cancellation() async throws {
        try await TestDatabase.with { database in
            let holder = try await PostgresConnection.connect(database.settings)
            let waiter = try await PostgresConnection.connect(database.settings)
            _ = try await holder.text("SELECT pg_advisory_lock(1)::text")
            let task = Task { try await waiter.text("SELECT pg_advisory_lock(1)::text") }
            while try await holder.integer(Self.waitingCount) == 0 {}
            task.cancel()
            let error = await postgresError { try await task.value }
            #expect(error?.code == .cancelled)
            #expect(error?.isRetryable == false)
            #expect(try await waiter.integer("SELECT 1") == 1)
        }
    }

    @Test("A cancelled task starts no statement.")
    func cancelledBefore() async throws {
        try await withConnection { connection async throws in
            let task = Task {
                withUnsafeCurrentTask { $0?.cancel() }
                return try await connection.integer("SELECT 1")
            }
            #expect(await postgresError { try await task.value }?.code == .cancelled)
            #expect(try await connection.integer("SELECT 2") == 2)
        }
    }

    @Test("Cancelling a task that waits for COMMIT does not interrupt the COMMIT.")
    func cancelledCommit() async throws {
        try await TestDatabase.with { database in
            let observer = try await PostgresConnection.connect(database.settings)
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.script(Self.heldCommit)
            _ = try await observer.text("SELECT pg_advisory_lock(1)::text")
            let task = Task {
                try await connection.transaction { session throws(PostgresError) in
                    _ = try session.execute(Statement(once: "INSERT INTO public.t VALUES (1)"))
                }
            }
            while try await observer.integer(Self.waitingCount) == 0 {}
            task.cancel()
            _ = try await observer.text("SELECT pg_advisory_unlock(1)::text")
            try await task.value
            #expect(try await connection.integer("SELECT count(*) FROM public.t") == 1)
        }
    }

    @Test("Waiting for PostgreSQL blocks no other task.")
    func otherTasksGoOn() async throws {
        try await TestDatabase.with { database in
            let gate = try await PostgresConnection.connect(database.settings)
            _ = try await gate.text("SELECT pg_advisory_lock(1)::text")
            let pool = database.pool(maximum: 16)
            try await withThrowingTaskGroup(of: Void.self) { group in
                for _ in 0..<16 {
                    group.addTask {
                        try await pool.withSession { session throws(PostgresError) in
                            _ = try session.execute(Statement(once: "SELECT pg_advisory_lock_shared(1)::text"))
                        }
                    }
                }
                // More waiting statements than the cooperative pool has threads, and this task still runs.
                while try await gate.integer(Self.waitingCount) < 16 {}
                _ = try await gate.text("SELECT pg_advisory_unlock(1)::text")
                try await group.waitForAll()
            }
            await pool.close()
        }
    }
}
