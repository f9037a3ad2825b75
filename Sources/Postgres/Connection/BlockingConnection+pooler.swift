extension BlockingConnection {
    /// A backend process, and the start time of its server, because two servers can have the same process id.
    private struct Backend: Equatable {
        let process: Int32
        let serverStart: Timestamp
    }

    /// How many further connections look for shared backends. Several processes of a pooler may listen at one address,
    /// each with its own backends, so a single one could miss them.
    private static let probeCount = 4

    /// Refuses a pooler that assigns any free backend to each transaction or statement: settings and prepared statements
    /// would leak between clients.
    ///
    /// The server reports the backend's process id when connecting. A pooler reports another number, and only then this
    /// connection and a probe ask which backend they have, also while the probe is in a transaction: a shared backend
    /// appears twice, or changes. Nothing is set on it.
    ///
    /// - Throws: `usage`; `connectionFailed` if the pooler has no connection for the probe.
    func refuseSharedBackends() throws(PostgresError) {
        let own = try backend()
        guard own.process != handle.reportedProcess else { return }
        for _ in 0..<Self.probeCount {
            let isShared: Bool
            do throws(PostgresError) {
                isShared = try sharesBackends(with: connectProbe(), own)
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

    private func sharesBackends(with probe: BlockingConnection, _ own: Backend) throws(PostgresError) -> Bool {
        if try probe.backend() == own { return true }
        do throws(PostgresError) {
            _ = try probe.execute(script: "BEGIN")
        } catch {
            guard isRefusalOfTransactions(error) else { throw error }
            return true
        }
        if try probe.backend() == own { return true }
        return try backend() != own
    }

    /// True if PgBouncer, in statement mode, refused a transaction. It uses the same code (08P01) for errors that say nothing
    /// about its mode, such as a server that restarts.
    private func isRefusalOfTransactions(_ error: PostgresError) -> Bool {
        error.sqlState?.classCode == "08" && error.detail?.contains("statement pooling") == true
    }

    private func connectProbe() throws(PostgresError) -> BlockingConnection {
        let probe = BlockingConnection(settings, thread)
        probe.grace = grace
        probe.context = context
        try probe.connect(to: settings.parameters + handle.place, until: context.deadline)
        return probe
    }

    private func backend() throws(PostgresError) -> Backend {
        // Qualified by the schema, because the search path is not set yet.
        let sql = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_postmaster_start_time()"
        return try Rows(execute(Statement(once: sql), Binds())).decode(Backend.init)[0]
    }
}
