extension Link {
    /// A session on a server: its process, and the server's start, which tells servers apart.
    private struct ServerSession: Equatable {
        let process: Int32
        let serverStart: Timestamp

        /// Qualified by its schema, since the search path is not set yet.
        static let own = Statement(once: "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_postmaster_start_time()")
    }

    /// How many more connections look for shared sessions. Several processes of a pooler may listen at one address, each
    /// with server sessions of its own, so one connection more could miss them.
    private static let witnesses = 4

    /// Refuses a pooler that gives a transaction or a statement whichever server session is free: settings and prepared
    /// statements would be those of another client, and ours be left to one.
    ///
    /// PostgreSQL says at connecting which process serves the connection. A pooler says something else there, and only then
    /// are there further questions: this connection and another one ask in turn which session they have, also while the
    /// other is in a transaction, so that a shared session has to show up twice or to change. Nothing is set in it.
    ///
    /// - Throws: `usage`; `connectionFailed` where the pooler has no connection for the question.
    func refuseSharedSessions() throws(PostgresError) {
        let own = try serverSession()
        guard own.process != handle.serverProcess else { return }
        for _ in 0..<Self.witnesses {
            let isShared: Bool
            do throws(PostgresError) {
                let witness = try witness()
                isShared = try sharesSessions(with: witness, own)
                witness.close()
            } catch {
                if error.code == .cancelled { throw error }
                throw PostgresError(
                    .connectionFailed,
                    "the pooler in front of PostgreSQL gave no second connection, which siwad needs to find out how it pools "
                        + "(\(error)); raise its pool_size, or connect to PostgreSQL directly"
                )
            }
            guard !isShared else {
                throw PostgresError(
                    .usage,
                    "PostgreSQL is behind a pooler that shares server sessions between clients (transaction or statement "
                        + "pooling); set pool_mode = session for siwad in PgBouncer, or connect to PostgreSQL directly"
                )
            }
        }
    }

    private func sharesSessions(with witness: Link, _ own: ServerSession) throws(PostgresError) -> Bool {
        if try witness.serverSession() == own { return true }
        do throws(PostgresError) {
            _ = try witness.execute(script: "BEGIN")
        } catch {
            guard isRefusalOfTransactions(error) else { throw error }
            return true
        }
        if try witness.serverSession() == own { return true }
        return try serverSession() != own
    }

    /// True if PgBouncer, in statement mode, refused a transaction. It uses the same code (08P01) for errors that say nothing
    /// about its mode, such as a server that restarts.
    private func isRefusalOfTransactions(_ error: PostgresError) -> Bool {
        error.sqlState?.classCode == "08" && error.detail?.contains("statement pooling") == true
    }

    /// Another connection to the very place that this one leads to.
    private func witness() throws(PostgresError) -> Link {
        var settings = settings
        // A pooler does not answer cancel requests for a client that waits for a server. The error of this connection has to
        // come before the attempt is abandoned, which reports a less precise cause.
        settings.grace = .milliseconds(10)
        let witness = Link(settings, thread)
        witness.call = call
        try witness.connect(to: settings.parameters + handle.place)
        return witness
    }

    private func serverSession() throws(PostgresError) -> ServerSession {
        let rows = Rows(try execute(ServerSession.own, Binds()))
        return ServerSession(process: try rows.int32(0, 0), serverStart: try rows.timestamp(0, 1))
    }
}
