import Postgres
import TestSupport
import Testing

@Suite("One execution after another")
struct TurnTests {
    private static let insert = Statement("INSERT INTO public.t VALUES ($1) RETURNING n")
    private static let total = "SELECT coalesce(sum(n), 0)::bigint FROM public.t"

    /// What was called, in order.
    private enum Step: Sendable, Equatable {
        case asked
        case committed(Int64)
    }

    private struct Turn: Sendable {
        var steps: [Step] = []
        var error: PostgresError?
    }

    /// Inserts values in turn; a value that is negative is not there yet when it is asked for.
    private func insert(_ values: [Int64], on connection: PostgresConnection) async throws -> Turn {
        try await connection.withSession { session throws(PostgresError) in
            var turn = Turn()
            var rest = values.dropFirst()
            do throws(PostgresError) {
                try session.execute(
                    Self.insert,
                    inTurn: Binds { $0.append(values[0]) },
                    next: {
                        turn.steps.append(.asked)
                        guard let next = rest.popFirst(), next >= 0 else { return nil }
                        return Binds { $0.append(next) }
                    },
                    committed: { (rows: borrowing Rows) throws(PostgresError) in
                        turn.steps.append(.committed(try rows.int64(0, 0)))
                    }
                )
            } catch {
                turn.error = error
            }
            return turn
        }
    }

    private func with(_ constraint: String = "", _ body: (PostgresConnection) async throws -> Void) async throws {
        try await withConnection { connection in
            try await connection.script("CREATE TABLE public.t (n bigint \(constraint))")
            try await body(connection)
        }
    }

    @Test("One statement may follow on another, also one that was never executed before.")
    func severalStatements() async throws {
        try await with { connection async throws in
            let negate = Statement("INSERT INTO public.t VALUES (-$1) RETURNING n")
            let inserted = try await connection.withSession { session throws(PostgresError) in
                var rest = [
                    Execution(negate, Binds { $0.append(Int64(2)) }),
                    Execution(Self.insert, Binds { $0.append(Int64(3)) }),
                ]
                var inserted: [Int64] = []
                try session.execute(
                    [Self.insert, negate],
                    inTurn: Execution(Self.insert, Binds { $0.append(Int64(1)) }),
                    next: { rest.isEmpty ? nil : rest.removeFirst() },
                    committed: { (rows: borrowing Rows) throws(PostgresError) in inserted.append(try rows.int64(0, 0)) }
                )
                return inserted
            }
            #expect(inserted == [1, -2, 3])
        }
    }

    @Test("What follows is asked for before the commit, each is a transaction of its own, and told in order.")
    func inTurn() async throws {
        try await with { connection async throws in
            let turn = try await insert([1, 2, 3], on: connection)
            #expect(turn.error == nil)
            #expect(turn.steps == [.asked, .committed(1), .asked, .committed(2), .asked, .committed(3), .asked])
            #expect(try await connection.integer("SELECT count(DISTINCT xmin::text) FROM public.t") == 3)
            #expect(try await connection.integer(Self.total) == 6)
        }
    }

    @Test("What comes in during a commit follows on it.")
    func askedAgain() async throws {
        try await with { connection async throws in
            let turn = try await insert([1, -1, 2], on: connection)
            #expect(turn.steps == [.asked, .committed(1), .asked, .asked, .committed(2), .asked])
        }
    }

    @Test("What fails leaves what was committed before it, and nothing after it is sent.")
    func failedExecution() async throws {
        try await with("CHECK (n <> 2)") { connection async throws in
            let turn = try await insert([1, 2, 3], on: connection)
            #expect(turn.error?.sqlState == .checkViolation)
            #expect(turn.steps == [.asked, .committed(1)])
            #expect(try await connection.integer(Self.total) == 1)
            #expect(try await insert([4], on: connection).error == nil)
        }
    }

    @Test("A commit that fails fails alone: what was sent after it is executed, and the connection goes on.")
    func failedCommit() async throws {
        try await with("UNIQUE DEFERRABLE INITIALLY DEFERRED") { connection async throws in
            try await connection.script("INSERT INTO public.t VALUES (1)")
            let turn = try await insert([1, 2], on: connection)
            #expect(turn.error?.sqlState == .uniqueViolation)
            #expect(turn.steps == [.asked])
            #expect(try await connection.integer(Self.total) == 3)
            #expect(try await insert([4], on: connection).steps == [.asked, .committed(4), .asked])
        }
    }

    @Test("The deadline cancels what is executed, and the connection goes on.")
    func deadline() async throws {
        let sleep = Statement("SELECT pg_sleep($1::text::float8)")
        try await with { connection async throws in
            let error = await postgresError {
                try await connection.withSession(deadline: .milliseconds(50)) { session throws(PostgresError) in
                    try session.execute(sleep, inTurn: Binds { $0.append("600") }, next: { nil }, committed: { _ in })
                }
            }
            #expect(error?.code == .timedOut)
            #expect(try await connection.integer("SELECT 1") == 1)
        }
    }

    @Test("When the server ends the connection, nothing is known of what was sent.")
    func lost() async throws {
        let end = Statement("SELECT pg_terminate_backend(pg_backend_pid())::text WHERE $1 = 1")
        try await with { connection async throws in
            let error = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    try session.execute(
                        end,
                        inTurn: Binds { $0.append(Int64(1)) },
                        next: { nil },
                        committed: { _ in }
                    )
                }
            }
            #expect(error?.code == .connectionLost)
            #expect(error?.isOutcomeUnknown == true)
            #expect(connection.isClosed)
        }
    }

    @Test("Inside a transaction, or with a statement that isn't kept, it is refused.")
    func refused() async throws {
        try await with { connection async throws in
            let inside = await postgresError {
                try await connection.transaction { session throws(PostgresError) in
                    try session.execute(
                        Self.insert,
                        inTurn: Binds { $0.append(Int64(1)) },
                        next: { nil },
                        committed: { _ in }
                    )
                }
            }
            #expect(inside?.code == .usage)
            let once = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    try session.execute(
                        Statement(once: "SELECT 1"),
                        inTurn: Binds(),
                        next: { nil },
                        committed: { _ in }
                    )
                }
            }
            #expect(once?.code == .usage)
            #expect(try await connection.integer(Self.total) == 0)
        }
    }
}
