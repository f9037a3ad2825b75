-- An attempt that does not count leaves a delivery due when it was: a probe of a retry that is due in hours must not make it
-- due now, ahead of fresh changes.

CREATE OR REPLACE FUNCTION siwa.settle_deliveries(
    of_endpoint integer, positions bigint[], claims text[], outcomes text[], delays bigint[], reasons text[],
    http_statuses integer[], details text[], times timestamptz[], durations bigint[]
) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET jit = off
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    settled bigint;
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT o.*, d.place
        FROM unnest(positions, claims::uuid[], outcomes, delays, reasons, http_statuses, details, times, durations)
            AS o (position, claim, outcome, delay, reason, http_status, detail, attempted_at, duration)
        CROSS JOIN LATERAL (
            SELECT d.ctid AS place FROM siwa.deliveries AS d
            WHERE d.endpoint_id = of_endpoint AND d.position = o.position
            OFFSET 0
        ) AS d
    ),
    settled AS (
        UPDATE siwa.deliveries AS d
        SET status = CASE WHEN o.outcome = 'postponed' THEN d.status ELSE o.outcome END,
            attempts = CASE WHEN o.outcome = 'postponed' THEN d.attempts - 1 ELSE d.attempts END,
            next_attempt_at = CASE o.outcome
                WHEN 'retry' THEN clock_timestamp() + o.delay * interval '1 microsecond'
                -- A probe may come before the delivery is due.
                WHEN 'postponed' THEN greatest(d.next_attempt_at, clock_timestamp())
            END,
            claim = NULL,
            claimed_until = NULL,
            reason = coalesce(o.reason, d.reason),
            http_status = CASE WHEN o.reason IS NULL AND o.outcome = 'postponed' THEN d.http_status ELSE o.http_status END,
            first_failed_at = CASE WHEN o.reason IS NULL THEN d.first_failed_at
                ELSE coalesce(d.first_failed_at, clock_timestamp()) END,
            resolved_at = CASE WHEN o.outcome = 'delivered' THEN clock_timestamp() END
        FROM ended AS o
        -- Another daemon may have replaced the claim since the look-up.
        WHERE d.ctid = o.place AND d.claim = o.claim
        RETURNING d.position, d.attempts, o.outcome, o.reason, o.http_status, o.detail, o.attempted_at, o.duration
    ),
    -- A receiver may ask for a pause every second, for as long as it wants.
    failed AS (
        SELECT s.* FROM settled AS s WHERE s.reason <> 'throttled'
    ),
    noted AS (
        INSERT INTO siwa.delivery_attempts (
            endpoint_id, position, attempt, attempted_at, duration, reason, http_status, detail, counted
        )
        SELECT
            of_endpoint, f.position, f.attempts + (f.outcome = 'postponed')::integer, f.attempted_at,
            f.duration * interval '1 microsecond', f.reason, f.http_status, f.detail, f.outcome <> 'postponed'
        FROM failed AS f
    ),
    -- A delivery may be the probe of its endpoint for days. This does not see the row that is inserted above.
    forgotten AS (
        DELETE FROM siwa.delivery_attempts AS a
        USING (
            SELECT o.place
            FROM failed AS f
            CROSS JOIN LATERAL (
                SELECT p.ctid AS place FROM siwa.delivery_attempts AS p
                WHERE p.endpoint_id = of_endpoint AND p.position = f.position AND NOT p.counted
                -- Not by attempt_id, whose index could then be read as a whole.
                ORDER BY p.attempted_at DESC OFFSET 19
            ) AS o
            WHERE f.outcome = 'postponed'
        ) AS o
        WHERE a.ctid = o.place
    )
    SELECT count(*) INTO settled FROM settled;
    RETURN settled;
END
$$;
COMMENT ON FUNCTION siwa.settle_deliveries IS
    'Stores the outcomes of attempts whose claims are still valid, and counts them. Outcomes: delivered, retry, dead, and postponed
for an attempt that does not count and leaves the delivery due when it was. Delays (of retries) and durations are in microseconds.';

COMMENT ON COLUMN siwa.operator_actions.affected IS
    'How many rows it changed. An action in batches has an entry for each batch, committed with it, so the entries are right even if
the run was interrupted.';
