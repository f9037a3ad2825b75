package import Basics
package import Postgres

/// The log of changes, as a publisher and `siwad doctor` use it: migration 0008 explains it.
package enum Publication {
    /// The channel of the hints that siwad sends with each publication.
    package static let channel = "siwa_changes"

    /// What a round added to the log.
    package struct Round: Sendable, Equatable {
        package let positions: ClosedRange<Int64>
        /// From the start of the transaction of the first of them to its publication.
        package let delay: Duration
    }

    package struct State: Sendable, Equatable {
        /// The last position; 0 if the log is empty.
        package let position: Int64
        package let publishedAt: WallTime
        /// How long the oldest committed change has waited for its publication; nil if none waits.
        package let age: Duration?
        /// False if the transaction ids belong to another cluster: the database was restored from a dump.
        package let belongsToCluster: Bool
        /// The server process that holds the row of the publication, so that no other one publishes: a publisher, or a transaction
        /// that has locked the row. nil if there is none, or a prepared transaction.
        package let publisher: Int32?
    }

    private static let publishing = Statement("SELECT first, last FROM siwa.publish_changes()")
    private static let waiting = Statement("SELECT siwa.publication_age() IS NOT NULL")
    /// Not a join, for which PostgreSQL may read the whole history: release 18 does so where nested loops are off.
    private static let firstTimes = Statement(
        """
        SELECT l.published_at, (SELECT c.recorded_at FROM siwa.account_changes AS c WHERE c.change_id = l.change_id)
        FROM siwa.change_log AS l
        WHERE l.position = $1
        """
    )

    /// Publishes the committed changes that are not in the log; nil if there are none or another session publishes them.
    ///
    /// - Throws: `objectNotInPrerequisiteState` until ``rebase(in:)``, in a database that was restored from a dump.
    package static func publish(in session: borrowing Session) throws(PostgresError) -> Round? {
        let rows = try session.execute(publishing)
        guard !rows.isNull(0, 0) else { return nil }
        let (first, last) = (try rows.int64(0, 0), try rows.int64(0, 1))
        let times = try session.execute(firstTimes, first).decode { (published: WallTime, recorded: WallTime) in
            published.duration(since: recorded)
        }
        return Round(positions: first...last, delay: times.first ?? .zero)
    }

    /// Whether a committed change is not in the log.
    package static func isBehind(in session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(waiting).bool(0, 0)
    }

    /// Continues the log after the transaction ids began again. Writers wait for as long as it takes.
    package static func rebase(in session: borrowing Session) throws(PostgresError) {
        _ = try session.execute(once: "SELECT siwa.rebase_publication()")
    }

    package static func state(in session: borrowing Session) throws(PostgresError) -> State {
        try session.execute(
            once: """
                SELECT
                    p.position, p.published_at,
                    (extract(epoch FROM siwa.publication_age()) * 1000)::bigint,
                    p.system_identifier = c.system_identifier
                        AND pg_snapshot_xmax(p.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()),
                    (
                        SELECT l.pid FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a USING (pid)
                        WHERE l.locktype = 'relation' AND l.relation = 'siwa.publication'::regclass
                            AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
                            -- SELECT … FOR UPDATE has RowShareLock, an update RowExclusiveLock. Readers and VACUUM block no publisher.
                            AND l.granted AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')
                            AND l.pid <> pg_backend_pid()
                        -- A process that waits for the row has a lock on the table too.
                        ORDER BY
                            EXISTS (
                                SELECT FROM pg_locks AS w
                                WHERE w.pid = l.pid AND NOT w.granted AND w.locktype IN ('transactionid', 'tuple')
                            ),
                            a.xact_start
                        LIMIT 1
                    )
                FROM siwa.publication AS p, pg_control_system() AS c
                """
        ).decode { (position: Int64, publishedAt: WallTime, age: Int64?, belongs: Bool, publisher: Int32?) in
            State(
                position: position,
                publishedAt: publishedAt,
                age: age.map { .milliseconds($0) },
                belongsToCluster: belongs,
                publisher: publisher
            )
        }[0]
    }
}
