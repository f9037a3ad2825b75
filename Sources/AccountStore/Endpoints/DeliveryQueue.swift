package import Basics
package import Postgres

/// A delivery that this daemon attempts, with its change.
package struct ClaimedDelivery: Sendable, Equatable {
    /// Identifies the attempt: its outcome is ignored after another daemon has claimed the delivery.
    package let claim: String
    /// True if an earlier attempt failed.
    package let isRetry: Bool
    /// Including this one.
    package let attempts: Int
    /// The person's address, if the endpoint wants it.
    package let email: String?
    package let change: PublishedChange

    package init(claim: String, isRetry: Bool, attempts: Int, email: String?, change: PublishedChange) {
        self.claim = claim
        self.isRetry = isRetry
        self.attempts = attempts
        self.email = email
        self.change = change
    }
}

/// The end of an attempt.
package struct SettledDelivery: Sendable, Equatable {
    package enum Outcome: Sendable, Equatable {
        case delivered
        case retry(after: Duration)
        case dead
        /// The attempt does not count.
        case postponed
    }

    package struct Failure: Sendable, Equatable {
        package let reason: DeliveryReason
        /// siwad's own words.
        package let words: String

        package init(_ reason: DeliveryReason, _ words: String) {
            self.reason = reason
            self.words = words
        }
    }

    package let position: Int64
    package let claim: String
    package let outcome: Outcome
    /// nil if it succeeded, or was not made.
    package let failure: Failure?
    package let httpStatus: Int?
    package let startedAt: WallTime
    package let duration: Duration

    package init(
        position: Int64,
        claim: String,
        outcome: Outcome,
        failure: Failure?,
        httpStatus: Int?,
        startedAt: WallTime,
        duration: Duration
    ) {
        self.position = position
        self.claim = claim
        self.outcome = outcome
        self.failure = failure
        self.httpStatus = httpStatus
        self.startedAt = startedAt
        self.duration = duration
    }
}

/// `siwa.deliveries` as the daemons work on it. Migration 0009 explains the functions.
package enum DeliveryQueue {
    /// How long a claim is valid beyond the timeout of the attempt, as in `siwa.claim_deliveries`.
    package static let claimGrace = Duration.seconds(10)

    /// Claims due deliveries of an enabled endpoint, in the order of their positions.
    ///
    /// - Parameters:
    ///   - capacity: the most in all.
    ///   - retries: the most of them that were attempted before.
    ///   - probe: `oldest` or `newest`: one delivery for a circuit that is open.
    package static func claim(
        of endpoint: Int32,
        capacity: Int,
        retries: Int,
        probe: String? = nil,
        in session: borrowing Session
    ) throws(PostgresError) -> [ClaimedDelivery] {
        let rows = try session.execute(claim, endpoint, Int32(clamping: capacity), Int32(clamping: retries), probe)
        return try rows.map { rows, row throws(PostgresError) in
            ClaimedDelivery(
                claim: try rows.string(row, 0),
                isRetry: try rows.string(row, 1) == "retry",
                attempts: try rows.value(row, 2),
                email: try rows.optionalString(row, 3),
                change: try PublishedChange(rows, row, from: 4)
            )
        }
    }

    /// Stores the outcomes of attempts whose claims are still valid.
    ///
    /// - Returns: their number.
    @discardableResult
    package static func settle(
        _ ended: [SettledDelivery],
        of endpoint: Int32,
        in session: borrowing Session
    ) throws(PostgresError) -> Int64 {
        // Rows are locked in the order of their keys.
        let ended = ended.sorted { $0.position < $1.position }
        let binds = Binds { binds in
            binds.append(endpoint)
            binds.append(array: ended.map(\.position))
            binds.append(array: ended.map(\.claim))
            binds.append(array: ended.map(\.outcome.name))
            binds.append(array: ended.map(\.outcome.delay))
            binds.append(array: ended.map { $0.failure?.reason.rawValue })
            binds.append(array: ended.map { $0.httpStatus.map { Int32(clamping: $0) } })
            binds.append(array: ended.map { $0.failure?.words })
            binds.append(array: ended.map { $0.startedAt })
            binds.append(array: ended.map { $0.duration.wholeMicroseconds })
        }
        return try session.execute(settle, binds).int64(0, 0)
    }

    /// Stores what this daemon knows of an endpoint's health, unless the endpoint was changed: an operator who resumed it
    /// has forgotten its failures.
    package static func store(
        _ state: EndpointState,
        of endpoint: Endpoint,
        in session: borrowing Session
    ) throws(PostgresError) {
        _ = try session.execute(
            storeState,
            endpoint.id,
            endpoint.revision,
            state.failingSince,
            state.openUntil,
            state.probeDelay,
            state.lastSuccessAt,
            state.lastReason,
            state.lastHTTPStatus.map { Int32(clamping: $0) },
            state.lastDetail,
            state.lastFailedAt
        )
    }

    /// Disables an endpoint that is enabled: its receiver is gone, or no daemon has had a success for
    /// ``EndpointConfiguration``'s `disableAfter` according to the stored state.
    ///
    /// - Parameter endpoint: as the daemon knows it. Requests to an earlier URL say nothing about a later one.
    /// - Returns: false if nothing was changed.
    package static func disable(
        _ endpoint: Endpoint,
        _ reason: Endpoint.StatusReason,
        in session: borrowing Session
    ) throws(PostgresError) -> Bool {
        try session.execute(
            once: """
                UPDATE siwa.endpoints AS e SET status = 'disabled', status_reason = $2
                WHERE e.endpoint_id = $1 AND e.status = 'enabled' AND e.revision = $3
                    AND ($2 <> 'failing' OR EXISTS (
                        SELECT FROM siwa.endpoint_states AS s
                        WHERE s.endpoint_id = e.endpoint_id AND s.failing_since <= clock_timestamp() - e.disable_after
                            AND (s.last_success_at IS NULL OR s.last_success_at <= clock_timestamp() - e.disable_after)
                    ))
                """,
            endpoint.id,
            reason,
            endpoint.revision
        ).affectedRows > 0
    }

    private static let claim = Statement(
        """
        SELECT
            claim, status, attempts, email, position, published_at, type, scope, team_id, sub, app_id, facet, from_state, to_state,
            event_time, recorded_at, jti, sessions_ended, session_id, account_id, change_id
        FROM \(unflushed), siwa.claim_deliveries($1, $2, $3, $4)
        """
    )
    private static let settle = Statement(
        "SELECT siwa.settle_deliveries($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) FROM \(unflushed)"
    )
    /// The commit of the statement does not wait for the disk, so that the rate of an endpoint does not depend on it. What a
    /// crash of PostgreSQL makes it forget is attempted again.
    private static let unflushed = "set_config('synchronous_commit', 'off', true) AS setting"
    /// True while the stored state is a pause that the receiver asked for. A time that is further ahead is of a wrong clock.
    private static let isPaused = """
        coalesce(
            s.last_reason = 'throttled'
                AND s.open_until > clock_timestamp() AND s.open_until <= clock_timestamp() + interval '1 hour',
            false
        )
        """
    /// During a pause, later failures must not hide it.
    private static let keepsReason =
        "(excluded.last_reason IS NULL OR excluded.last_reason <> 'throttled' AND \(isPaused))"
    /// Another daemon may have noticed an earlier failure, or had a success after the first failure of this one. A success of any
    /// daemon, and an operator who resumes the endpoint, end all failures before it.
    private static let storeState = Statement(
        """
        INSERT INTO siwa.endpoint_states AS s (
            endpoint_id, failing_since, open_until, probe_delay, last_success_at, last_reason, last_http_status, last_detail
        )
        -- A daemon whose clock is ahead must not have a success that later failures are compared with.
        SELECT $1, $3, $4, $5, CASE WHEN $6 > clock_timestamp() THEN clock_timestamp() ELSE $6 END, $7, $8, left($9, 500)
        FROM siwa.endpoints AS e WHERE e.endpoint_id = $1 AND e.revision = $2
        ON CONFLICT (endpoint_id) DO UPDATE SET
            failing_since = (
                SELECT min(f.time)
                FROM siwa.endpoints AS e, unnest(ARRAY[s.failing_since, excluded.failing_since, $10]) AS f (time)
                WHERE e.endpoint_id = $1
                    AND f.time > greatest(s.last_success_at, excluded.last_success_at, e.status_at)
            ),
            -- A daemon that knows of no pause does not end one for which the receiver asked another daemon.
            open_until = CASE WHEN \(isPaused) THEN greatest(s.open_until, excluded.open_until) ELSE excluded.open_until END,
            probe_delay = CASE
                WHEN \(isPaused) AND s.open_until >= coalesce(excluded.open_until, s.open_until) THEN s.probe_delay
                ELSE excluded.probe_delay
            END,
            last_success_at = greatest(
                CASE WHEN s.last_success_at > clock_timestamp() THEN clock_timestamp() ELSE s.last_success_at END,
                excluded.last_success_at
            ),
            last_reason = CASE WHEN \(keepsReason) THEN s.last_reason ELSE excluded.last_reason END,
            last_http_status = CASE WHEN \(keepsReason) THEN s.last_http_status ELSE excluded.last_http_status END,
            last_detail = CASE WHEN \(keepsReason) THEN s.last_detail ELSE excluded.last_detail END
        """
    )
}

extension SettledDelivery.Outcome {
    fileprivate var name: String {
        switch self {
        case .delivered: "delivered"
        case .retry: "retry"
        case .dead: "dead"
        case .postponed: "postponed"
        }
    }

    /// In microseconds.
    fileprivate var delay: Int64 {
        switch self {
        case .retry(let delay): delay.wholeMicroseconds
        case .delivered, .dead, .postponed: 0
        }
    }
}

extension Duration {
    fileprivate var wholeMicroseconds: Int64 { Int64(max(0, self / .microseconds(1))) }
}

/// What waits for an endpoint.
package struct DeliveryBacklog: Sendable, Equatable {
    package let endpoint: String
    /// The positions after the last one up to which everything was attempted.
    package let lag: Int64
    /// Since the oldest undelivered change was published.
    package let age: Duration
    package let pending: Int64
    package let retry: Int64
    package let dead: Int64
}

extension DeliveryQueue {
    /// The backlogs of all endpoints. Each part reads a partial index.
    package static func backlogs(in session: borrowing Session) throws(PostgresError) -> [DeliveryBacklog] {
        try session.execute(measure).decode {
            (endpoint: String, lag: Int64, age: Duration, pending: Int64, retry: Int64, dead: Int64) in
            DeliveryBacklog(endpoint: endpoint, lag: lag, age: age, pending: pending, retry: retry, dead: dead)
        }
    }

    private static let measure = Statement(
        """
        SELECT
            e.name,
            coalesce((SELECT position FROM siwa.publication) - p.first + 1, 0),
            greatest(coalesce(clock_timestamp() - least(p.oldest, r.oldest), interval '0'), interval '0'),
            p.count, r.count,
            (SELECT count(*) FROM siwa.deliveries AS d WHERE d.endpoint_id = e.endpoint_id AND d.status = 'dead')
        FROM siwa.endpoints AS e
        CROSS JOIN LATERAL (
            SELECT min(d.position) AS first, count(*) AS count, min(d.created_at) AS oldest
            FROM siwa.deliveries AS d WHERE d.endpoint_id = e.endpoint_id AND d.status = 'pending'
        ) AS p
        CROSS JOIN LATERAL (
            SELECT count(*) AS count, min(d.created_at) AS oldest
            FROM siwa.deliveries AS d WHERE d.endpoint_id = e.endpoint_id AND d.status = 'retry'
        ) AS r
        """
    )
}
