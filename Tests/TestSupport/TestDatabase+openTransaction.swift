package import Postgres

extension TestDatabase {
    /// Runs `body` while another connection's transaction, which has done `work`, is open. It commits afterwards.
    package func whileOpen<R>(
        _ work: @escaping @Sendable (borrowing Session) throws(PostgresError) -> Void,
        _ body: () async throws -> R
    ) async throws -> R {
        let gate = try await PostgresConnection.connect(settings)
        let other = try await PostgresConnection.connect(settings)
        try await gate.withSession { session throws(PostgresError) in
            try session.execute(script: "SELECT pg_advisory_lock(\(Self.gate))")
        }
        // A flood on a busy machine takes longer than a connection's usual deadline.
        async let transaction: Void = other.transaction(deadline: .seconds(300)) { session throws(PostgresError) in
            try work(session)
            try session.execute(script: "SELECT pg_advisory_xact_lock_shared(\(Self.gate))")
        }
        let result: Result<R, any Error>
        do {
            while try await !isAtGate(gate) { await Task.yield() }
            result = .success(try await body())
        } catch {
            result = .failure(error)
        }
        try await gate.withSession { session throws(PostgresError) in
            try session.execute(script: "SELECT pg_advisory_unlock(\(Self.gate))")
        }
        try await transaction
        await other.close()
        await gate.close()
        return try result.get()
    }

    /// The key of the lock that the open transaction waits for.
    private static let gate = 47_110_815

    private func isAtGate(_ connection: PostgresConnection) async throws -> Bool {
        try await connection.withSession { session throws(PostgresError) in
            let rows = try session.execute(Self.waiting, Binds { $0.append("\(Self.gate)") })
            return try rows.bool(0, 0)
        }
    }

    private static let waiting = Statement(
        """
        SELECT EXISTS (
            SELECT FROM pg_locks
            WHERE locktype = 'advisory' AND NOT granted AND objid = $1::text::oid
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        )
        """
    )
}
