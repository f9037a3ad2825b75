import Postgres
import TestSupport
import Testing

@Suite("Pipelined executions")
struct PipelineTests {
    private static let insert = Statement("INSERT INTO public.t VALUES ($1) RETURNING n")
    private static let total = "SELECT coalesce(sum(n), 0)::bigint FROM public.t"

    /// A call of one of the closures.
    private enum Step: Sendable, Equatable {
        case asked
        case committed(Int64)
    }

    private struct Run: Sendable {
        var steps: [Step] = []
        var error: PostgresError?
    }

    /// Inserts values in a pipeline. At a negative value, `next` returns nil.
    private func insert(_ values: [Int64], on connection: PostgresConnection) async throws -> Run {
        try await connection.withSession { session throws(PostgresError) in
            var run = Run()
            var rest = values.dropFirst()
            do throws(PostgresError) {
                try session.executePipelined(
                    Self.insert,
                    first: Binds { $0.append(values[0]) },
                    next: {
                        run.steps.append(.asked)
                        guard let next = rest.popFirst(), next >= 0 else { return nil }
                        return Binds { $0.append(next) }
                    },
                    committed: { (rows: borrowing Rows) throws(PostgresError) in
                        run.steps.append(.committed(try rows.int64(0, 0)))
                    }
                )
            } catch {
                run.error = error
            }
            return run
        }
    }

    private func with(_ constraint: String = "", _ body: (PostgresConnection) async throws -> Void) async throws {
        try await withConnection { connection in
            try await connection.script("CREATE TABLE public.t (n bigint \(constraint))")
            try await body(connection)
        }
    }

    @Test("Different statements may follow one another, also ones never executed before.")
    func severalStatements() async throws {
        try await with { connection async throws in
            let negate = Statement("INSERT INTO public.t VALUES (-$1) RETURNING n")
            let inserted = try await connection.withSession { session throws(PostgresError) in
                var rest = [
                    BoundStatement(negate, Binds { $0.append(Int64(2)) }),
                    BoundStatement(Self.insert, Binds { $0.append(Int64(3)) }),
                ]
                var inserted: [Int64] = []
                try session.executePipelined(
                    [Self.insert, negate],
                    first: BoundStatement(Self.insert, Binds { $0.append(Int64(1)) }),
                    next: { rest.isEmpty ? nil : rest.removeFirst() },
                    committed: { (rows: borrowing Rows) throws(PostgresError) in inserted.append(try rows.int64(0, 0)) }
                )
                return inserted
            }
            #expect(inserted == [1, -2, 3])
        }
    }

    @Test("next is called before the commit; each execution is a transaction and is reported in order.")
    func order() async throws {
        try await with { connection async throws in
            let run = try await insert([1, 2, 3], on: connection)
            #expect(run.error == nil)
            #expect(run.steps == [.asked, .committed(1), .asked, .committed(2), .asked, .committed(3), .asked])
            #expect(try await connection.integer("SELECT count(DISTINCT xmin::text) FROM public.t") == 3)
            #expect(try await connection.integer(Self.total) == 6)
        }
    }

    @Test("If next returns nil, it is called again after the commit.")
    func askedAgain() async throws {
        try await with { connection async throws in
            let run = try await insert([1, -1, 2], on: connection)
            #expect(run.steps == [.asked, .committed(1), .asked, .asked, .committed(2), .asked])
        }
    }

    @Test("A failed execution ends the pipeline; earlier ones stay committed, and no later one is sent.")
    func failedBoundStatement() async throws {
        try await with("CHECK (n <> 2)") { connection async throws in
            let run = try await insert([1, 2, 3], on: connection)
            #expect(run.error?.sqlState == .checkViolation)
            #expect(run.steps == [.asked, .committed(1)])
            #expect(try await connection.integer(Self.total) == 1)
            #expect(try await insert([4], on: connection).error == nil)
        }
    }

    @Test("After a failed commit, the statement that was already sent is executed, and the connection stays usable.")
    func failedCommit() async throws {
        try await with("UNIQUE DEFERRABLE INITIALLY DEFERRED") { connection async throws in
            try await connection.script("INSERT INTO public.t VALUES (1)")
            let run = try await insert([1, 2], on: connection)
            #expect(run.error?.sqlState == .uniqueViolation)
            #expect(run.steps == [.asked])
            #expect(try await connection.integer(Self.total) == 3)
            #expect(try await insert([4], on: connection).steps == [.asked, .committed(4), .asked])
        }
    }

    @Test("The deadline cancels the running statement, and the connection stays usable.")
    func deadline() async throws {
        let sleep = Statement("SELECT pg_sleep($1::text::float8)")
        try await with { connection async throws in
            let error = await postgresError {
                try await connection.withSession(deadline: .milliseconds(50)) { session throws(PostgresError) in
                    try session.executePipelined(
                        sleep,
                        first: Binds { $0.append("600") },
                        next: { nil },
                        committed: { _ in }
                    )
                }
            }
            #expect(error?.code == .timedOut)
            #expect(try await connection.integer("SELECT 1") == 1)
        }
    }

    @Test("If the server ends the connection, the outcome is unknown.")
    func lost() async throws {
        let end = Statement("SELECT pg_terminate_backend(pg_backend_pid())::text WHERE $1 = 1")
        try await with { connection async throws in
            let error = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    try session.executePipelined(
                        end,
                        first: Binds { $0.append(Int64(1)) },
                        next: { nil },
                        committed: { _ in }
                    )
                }
            }
            #expect(error?.code == .connectionLost)
            #expect(error?.isOutcomeUnknown == true)
            #expect(connection.isClosed)
            let next = try await insert([1], on: connection).error
            #expect(next?.code == .connectionLost && next?.isOutcomeUnknown == false, "\(String(describing: next))")
        }
    }

    @Test("A pipeline inside a transaction, or with a statement made by init(once:), is refused.")
    func refused() async throws {
        try await with { connection async throws in
            let inside = await postgresError {
                try await connection.transaction { session throws(PostgresError) in
                    try session.executePipelined(
                        Self.insert,
                        first: Binds { $0.append(Int64(1)) },
                        next: { nil },
                        committed: { _ in }
                    )
                }
            }
            #expect(inside?.code == .usage)
            let once = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    try session.executePipelined(
                        Statement(once: "SELECT 1"),
                        first: Binds(),
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
