-- Claims that read only what is due. A call of a volatile function such as clock_timestamp() can't bound the scan of an index: each
-- claim read all retries of its endpoint, or all codes. The functions keep their comments and rights.

-- Deliveries that one daemon is to attempt. Another daemon that claims at the same time gets others.
CREATE OR REPLACE FUNCTION siwa.claim_deliveries(of_endpoint integer, capacity integer, again integer, probe text)
    RETURNS TABLE (
        claim text, status text, attempts integer, email text, "position" bigint, published_at timestamptz, type text, scope text,
        team_id text, sub text, app_id text, facet text, from_state text, to_state text, event_time timestamptz,
        recorded_at timestamptz, jti text, sessions_ended integer, session_id text, account_id bigint, change_id bigint
    )
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    -- As in siwa.publish_changes: a claim must not become slow because the plan is from when the table was small.
    SET jit = off
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    e       siwa.endpoints;
    chosen  tid[] := '{}';
    retries tid[] := '{}';
    -- The longest timeout of an attempt, and time to spare. A claim that ends later was made while the clock was ahead.
    longest constant interval := interval '130 s';
    -- A probe may come before the delivery is due.
    due     constant timestamptz := CASE WHEN probe IS NULL THEN clock_timestamp() ELSE 'infinity' END;
BEGIN
    SELECT * INTO e FROM siwa.endpoints AS p WHERE p.endpoint_id = of_endpoint AND p.status = 'enabled';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- The scalar subqueries find what a change waits for among the earlier ones of its person. They are no joins, which could be
    -- planned to read the whole table.
    IF probe = 'newest' THEN
        chosen := ARRAY(
            SELECT d.ctid FROM siwa.deliveries AS d
            WHERE d.endpoint_id = of_endpoint AND d.status = 'pending'
                AND (d.claim IS NULL OR d.claimed_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + longest)
                AND (
                    SELECT b.position FROM siwa.deliveries AS b
                    WHERE b.endpoint_id = of_endpoint AND b.account_id = d.account_id AND b.position < d.position
                        AND b.status IN ('pending', 'retry')
                    LIMIT 1
                ) IS NULL
            ORDER BY d.position DESC LIMIT 1
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF probe IS DISTINCT FROM 'newest' THEN
        retries := ARRAY(
            SELECT d.ctid FROM siwa.deliveries AS d
            WHERE d.endpoint_id = of_endpoint AND d.status = 'retry' AND d.next_attempt_at <= due
                AND (d.claim IS NULL OR d.claimed_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + longest)
                AND CASE WHEN e.ordering = 'none' THEN true ELSE (
                    SELECT b.position FROM siwa.deliveries AS b
                    WHERE b.endpoint_id = of_endpoint AND b.account_id = d.account_id AND b.position < d.position
                        AND b.status IN ('pending', 'retry') AND (b.status = 'pending' OR e.ordering = 'person')
                    LIMIT 1
                ) IS NULL END
            ORDER BY d.next_attempt_at LIMIT least(again, capacity)
            FOR UPDATE SKIP LOCKED
        );
        chosen := retries || ARRAY(
            SELECT d.ctid FROM siwa.deliveries AS d
            WHERE d.endpoint_id = of_endpoint AND d.status = 'pending'
                AND (d.claim IS NULL OR d.claimed_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + longest)
                AND CASE WHEN e.ordering = 'none' THEN true ELSE (
                    SELECT b.position FROM siwa.deliveries AS b
                    WHERE b.endpoint_id = of_endpoint AND b.account_id = d.account_id AND b.position < d.position
                        AND b.status IN ('pending', 'retry') AND (b.status = 'pending' OR e.ordering = 'person')
                    LIMIT 1
                ) IS NULL END
            ORDER BY d.position LIMIT capacity - cardinality(retries)
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    -- The plan may be from when the tables were empty, so it must not depend on their size: rows are updated by ctid, which their
    -- lock keeps, and each lateral subquery can only be planned as a look-up in the index of its key.
    RETURN QUERY
    WITH claimed AS (
        UPDATE siwa.deliveries AS d
        SET claim = gen_random_uuid(),
            claimed_until = clock_timestamp() + e.timeout + interval '10 s',
            attempts = d.attempts + 1
        FROM unnest(chosen) AS o (place)
        WHERE d.ctid = o.place
        RETURNING d.position, d.account_id, d.claim, d.status, d.attempts
    )
    SELECT
        k.claim::text, k.status, k.attempts, CASE WHEN 'email' = ANY (e.include) THEN a.email END, k.position, l.published_at,
        siwa.change_type(c.facet, c.from_state, c.to_state), siwa.change_scope(c.facet), a.team_id, a.sub, c.app_id, c.facet,
        c.from_state, c.to_state, c.event_time, c.recorded_at, c.jti, c.sessions_ended, c.session_id, c.account_id, l.change_id
    FROM claimed AS k
    CROSS JOIN LATERAL (
        SELECT l.change_id, l.published_at FROM siwa.change_log AS l WHERE l.position = k.position OFFSET 0
    ) AS l
    CROSS JOIN LATERAL (
        -- Both columns, because an index of account_changes begins with the account.
        SELECT c.* FROM siwa.account_changes AS c
        WHERE c.account_id = k.account_id AND c.change_id = l.change_id
        OFFSET 0
    ) AS c
    CROSS JOIN LATERAL (
        SELECT a.team_id, a.sub, a.email FROM siwa.accounts AS a WHERE a.account_id = k.account_id OFFSET 0
    ) AS a
    ORDER BY k.position;
END
$$;

CREATE OR REPLACE FUNCTION siwa.claim_exchanges(at_most bigint, client_ids text[] DEFAULT NULL)
    RETURNS TABLE (
        sign_in_id bigint, account_id bigint, client_id text, sub text, signed_in_at timestamptz, code_sealed bytea,
        attempt integer
    )
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    due    constant timestamptz := clock_timestamp();
    chosen tid[] := ARRAY(
        SELECT s.ctid FROM siwa.sign_ins AS s
        WHERE s.code_due_at <= due
            -- A lease that ends later was taken while the clock was ahead.
            AND (s.lease_until IS NULL OR s.lease_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + interval '90 s')
            AND (
                client_ids IS NULL OR s.client_id = ANY (client_ids)
                -- Too old to be traded: any daemon may erase it.
                OR s.signed_in_at < clock_timestamp() - interval '5 minutes'
            )
        ORDER BY s.code_due_at
        LIMIT at_most
        FOR NO KEY UPDATE SKIP LOCKED
    );
BEGIN
    RETURN QUERY
    WITH claimed AS (
        UPDATE siwa.sign_ins AS s
        SET lease_until = clock_timestamp() + interval '60 s', code_attempts = s.code_attempts + 1
        FROM unnest(chosen) AS o (place)
        WHERE s.ctid = o.place
        RETURNING s.*
    )
    SELECT
        k.sign_in_id, k.account_id, k.client_id, a.sub, k.signed_in_at, k.code_sealed, k.code_attempts::integer
    FROM claimed AS k
    CROSS JOIN LATERAL (SELECT a.sub FROM siwa.accounts AS a WHERE a.account_id = k.account_id OFFSET 0) AS a
    ORDER BY k.code_due_at;
END
$$;

-- Ends of sessions lock no common row.
COMMENT ON VIEW siwa.account_history IS
    'One row per change of state. facet: consent, account, email or session (ended by an operator). For each consent, and for the
facets account and email of a person, change_id is in commit order. Otherwise a smaller change_id may be committed later, so do
not use change_id as a cursor: siwa.changes has positions for that.';
COMMENT ON VIEW siwa.changes IS
    'The published changes, each with its position: read them WHERE position > the last one that you handled ORDER BY position.
For each consent, and for the facets account and email of a person, positions are in commit order.';
