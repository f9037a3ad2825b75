-- Sign-ins through siwad: reserved before the authorization code is used, settled after the exchange.
--
-- Identity token, nonce and code are single use, by their digests and unique constraints, so across daemons too. Writers lock the
-- row of the sign-in, then account, consent, and the tokens of the person.

CREATE DOMAIN siwa.digest AS bytea CONSTRAINT digest_is_a_sha256 CHECK (octet_length(VALUE) = 32);
COMMENT ON DOMAIN siwa.digest IS 'The SHA-256 of a value that is used once.';
CREATE DOMAIN siwa.sign_in_flow AS text COLLATE "C" CONSTRAINT sign_in_flow_is_known CHECK (
    VALUE IN ('native', 'code', 'web', 'android')
);
COMMENT ON DOMAIN siwa.sign_in_flow IS 'How a sign-in reached siwad; code: without an identity token of the device.';
CREATE DOMAIN siwa.refresh_outcome AS text COLLATE "C" CONSTRAINT refresh_outcome_is_known CHECK (
    VALUE IN ('stored', 'pending', 'kept', 'none', 'lost', 'refused')
);
COMMENT ON DOMAIN siwa.refresh_outcome IS 'What became of the refresh token of a sign-in; see siwa.sign_ins.refresh.';
CREATE DOMAIN siwa.real_user_status AS text COLLATE "C" CONSTRAINT real_user_status_is_known CHECK (
    VALUE IN ('likely-real', 'unknown', 'unsupported')
);
COMMENT ON DOMAIN siwa.real_user_status IS 'Apple''s guess whether a person uses the device.';

CREATE TABLE siwa.sign_ins (
    sign_in_id       bigint GENERATED ALWAYS AS IDENTITY,
    presented_digest siwa.digest NOT NULL,
    nonce_digest     siwa.digest,
    code_digest      siwa.digest,
    client_id        text COLLATE "C" NOT NULL,
    app_id           text COLLATE "C" NOT NULL,
    flow             siwa.sign_in_flow NOT NULL,
    caller           text COLLATE "C" NOT NULL,
    attempt          siwa.digest,
    signed_in_at     timestamptz,
    received_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until      timestamptz,
    settled_at       timestamptz,
    account_id       bigint,
    session_id       text COLLATE "C",
    new_account      boolean,
    real_user_status siwa.real_user_status,
    refresh          siwa.refresh_outcome,
    refresh_error    text COLLATE "C",
    code_sealed      bytea,
    code_due_at      timestamptz,
    code_attempts    smallint NOT NULL DEFAULT 0,
    device           jsonb,
    CONSTRAINT sign_ins_pkey PRIMARY KEY (sign_in_id),
    CONSTRAINT sign_ins_token_is_used_once UNIQUE (presented_digest),
    CONSTRAINT sign_ins_nonce_is_used_once UNIQUE (client_id, nonce_digest),
    CONSTRAINT sign_ins_are_settled_completely CHECK (
        num_nulls(settled_at, signed_in_at, account_id, new_account, refresh) IN (0, 5)
    ),
    CONSTRAINT sign_ins_pending_have_a_code_that_is_due CHECK (
        (code_sealed IS NOT NULL) = (refresh IS NOT DISTINCT FROM 'pending')
        AND (code_sealed IS NULL) = (code_due_at IS NULL)
    ),
    CONSTRAINT sign_ins_refused_with_an_error CHECK (
        (refresh_error IS NOT NULL) = (refresh IS NOT DISTINCT FROM 'refused')
    ),
    CONSTRAINT sign_ins_code_attempts_are_counted CHECK (code_attempts >= 0)
);
-- Finds the codes to trade in the background; few rows have one.
CREATE INDEX sign_ins_code_due_at ON siwa.sign_ins (code_due_at) WHERE code_due_at IS NOT NULL;
-- Serves retention and listings.
CREATE INDEX sign_ins_received_at ON siwa.sign_ins (received_at);
-- Serves the erasure of a person's devices.
CREATE INDEX sign_ins_device ON siwa.sign_ins (account_id) WHERE device IS NOT NULL;
COMMENT ON TABLE siwa.sign_ins IS
    'Every sign-in through siwad, until SIWAD_SIGN_IN_RETENTION. A row without settled_at is reserved and names no person.';
COMMENT ON COLUMN siwa.sign_ins.presented_digest IS 'Of the identity token, or of the code in the flow without one.';
COMMENT ON COLUMN siwa.sign_ins.caller IS 'The caller of SIWAD_APPLICATION_TOKENS; empty without tokens.';
COMMENT ON COLUMN siwa.sign_ins.attempt IS
    'Of the idempotency key: without a session, a repeated request must have the same one to get the same answer.';
COMMENT ON COLUMN siwa.sign_ins.signed_in_at IS 'iat of the identity token.';
COMMENT ON COLUMN siwa.sign_ins.lease_until IS
    'Until this time, only the process that reserved the sign-in, or that trades its code, works on it.';
COMMENT ON COLUMN siwa.sign_ins.new_account IS 'It was the first sign-in of the person to the app group.';
COMMENT ON COLUMN siwa.sign_ins.refresh IS
    'stored: a refresh token came. pending: the code is traded in the background. kept: none came, an older one is there. none:
there was no code. lost: the code was used up without an answer. refused: Apple refused the code, see refresh_error.';
COMMENT ON COLUMN siwa.sign_ins.refresh_error IS 'Apple''s code of the error, such as invalid_client.';
COMMENT ON COLUMN siwa.sign_ins.code_sealed IS
    'A compact JWE with the code, sealed with a key of SIWAD_SEALING_KEYS; erased when the code was traded or given up.';
COMMENT ON COLUMN siwa.sign_ins.code_attempts IS 'How often the code may have been sent to Apple without an outcome.';
COMMENT ON COLUMN siwa.sign_ins.device IS 'What the application said of the device: platform, model, label. For support.';

CREATE TABLE siwa.apple_tokens (
    account_id   bigint NOT NULL,
    client_id    text COLLATE "C" NOT NULL,
    app_id       text COLLATE "C" NOT NULL,
    obtained_at  timestamptz NOT NULL,
    sealed       bytea NOT NULL,
    key_name     text COLLATE "C" NOT NULL,
    validated_at timestamptz,
    asked_at     timestamptz,
    lease_until  timestamptz,
    due_at       timestamptz NOT NULL,
    refusals     smallint NOT NULL DEFAULT 0,
    state        text COLLATE "C" NOT NULL DEFAULT 'valid',
    CONSTRAINT apple_tokens_pkey PRIMARY KEY (account_id, client_id),
    CONSTRAINT apple_tokens_consent_exists
        FOREIGN KEY (account_id, app_id) REFERENCES siwa.consents (account_id, app_id),
    CONSTRAINT apple_tokens_refusals_are_counted CHECK (refusals >= 0),
    CONSTRAINT apple_tokens_state_is_known CHECK (state IN ('valid', 'refused', 'unreadable'))
) WITH (fillfactor = 80);
CREATE INDEX apple_tokens_due_at ON siwa.apple_tokens (due_at) WHERE state = 'valid';
COMMENT ON TABLE siwa.apple_tokens IS
    'Apple''s refresh tokens: one for each person and client, of the latest sign-in. Read siwa.refresh_tokens instead.';
COMMENT ON COLUMN siwa.apple_tokens.obtained_at IS 'Register, the latest value wins: iat of the sign-in that got the token.';
COMMENT ON COLUMN siwa.apple_tokens.sealed IS 'A compact JWE whose content also names account and client.';
COMMENT ON COLUMN siwa.apple_tokens.key_name IS 'The name of the key in SIWAD_SEALING_KEYS.';
COMMENT ON COLUMN siwa.apple_tokens.validated_at IS 'When Apple last accepted the token; null before that.';
COMMENT ON COLUMN siwa.apple_tokens.asked_at IS 'When Apple was last asked whether the token is valid; null before that.';
COMMENT ON COLUMN siwa.apple_tokens.due_at IS 'When Apple may be asked next.';
COMMENT ON COLUMN siwa.apple_tokens.refusals IS 'How often in a row Apple has refused the token.';
COMMENT ON COLUMN siwa.apple_tokens.state IS
    'valid, refused by Apple, or unreadable: no key opens it, and siwad sets it aside. An unreadable token ends nothing.';

CREATE TABLE siwa.kept_names (
    account_id  bigint NOT NULL,
    app_id      text COLLATE "C" NOT NULL,
    given       text,
    family      text,
    captured_at timestamptz NOT NULL,
    CONSTRAINT kept_names_pkey PRIMARY KEY (account_id, app_id),
    CONSTRAINT kept_names_consent_exists
        FOREIGN KEY (account_id, app_id) REFERENCES siwa.consents (account_id, app_id),
    CONSTRAINT kept_names_have_a_part CHECK (num_nonnulls(nullif(given, ''), nullif(family, '')) > 0)
);
COMMENT ON TABLE siwa.kept_names IS
    'The names that Apple passes on only at the first sign-in to an app group, unverified. Read siwa.account_names instead.';
COMMENT ON COLUMN siwa.kept_names.captured_at IS 'Register, the latest value wins: iat of the sign-in that brought the name.';

CREATE VIEW siwa.refresh_tokens AS
SELECT
    t.account_id, t.client_id, t.app_id, t.obtained_at, t.key_name, t.validated_at, t.asked_at, t.lease_until, t.due_at,
    t.refusals, t.state
FROM siwa.apple_tokens AS t;
COMMENT ON VIEW siwa.refresh_tokens IS 'Apple''s refresh tokens without their sealed texts.';

CREATE VIEW siwa.account_names AS
SELECT a.team_id, a.sub, n.app_id, n.given, n.family, n.captured_at, n.account_id
FROM siwa.kept_names AS n
JOIN siwa.accounts AS a USING (account_id)
JOIN siwa.consents AS c USING (account_id, app_id)
WHERE a.deleted_at IS NULL AND (c.revoked_at IS NULL OR c.revoked_at < n.captured_at);
COMMENT ON VIEW siwa.account_names IS
    'The name of each person as given to an app group, unverified. Not after the consent was revoked or the account deleted.';

-- Deletes old sign-ins, and the refresh tokens and names of people who revoked their consent.
ALTER TABLE siwa.maintenance
    DROP CONSTRAINT maintenance_task_is_known,
    ADD CONSTRAINT maintenance_task_is_known CHECK (
        task IN ('partitions', 'retention', 'sessions', 'erasure', 'deliveries', 'sign-ins', 'tokens')
    );

CREATE TYPE siwa.sign_in_answer AS (
    outcome           text,
    sign_in_id        bigint,
    client_id         text,
    app_id            text,
    team_id           text,
    account_id        bigint,
    sub               text,
    state             text,
    new_account       boolean,
    signed_in_at      timestamptz,
    email             text,
    email_is_private  boolean,
    email_deliverable boolean,
    given             text,
    family            text,
    captured_at       timestamptz,
    real_user_status  text,
    refresh           text,
    refresh_error     text,
    session_id        text,
    session_is_live   boolean,
    created_at        timestamptz,
    expires_at        timestamptz
);
COMMENT ON TYPE siwa.sign_in_answer IS
    'The outcome of a sign-in, and for a settled one the present state of its person and session.';

CREATE FUNCTION siwa.answer_sign_in(of_sign_in bigint, outcome text) RETURNS siwa.sign_in_answer
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer siwa.sign_in_answer;
BEGIN
    -- Each lateral subquery can only be planned as a look-up by its key, also while the tables are empty.
    SELECT
        answer_sign_in.outcome, s.sign_in_id, s.client_id, s.app_id, a.team_id, s.account_id, a.sub,
        CASE WHEN a.deleted_at IS NOT NULL THEN 'deleted' ELSE siwa.consent_state(c.authorized_at, c.revoked_at) END,
        s.new_account, s.signed_in_at, a.email, a.email_is_private,
        siwa.email_state(a.forwarding_disabled_at, a.forwarding_enabled_at, a.email_is_private) = 'deliverable'
            AND (a.deleted_at IS NULL OR a.email_is_private IS FALSE),
        n.given, n.family, n.captured_at, s.real_user_status, s.refresh, s.refresh_error,
        o.session_id, siwa.session_is_live(o.session_id), o.created_at, o.expires_at
    INTO answer
    FROM siwa.sign_ins AS s
    CROSS JOIN LATERAL (SELECT * FROM siwa.accounts AS a WHERE a.account_id = s.account_id OFFSET 0) AS a
    CROSS JOIN LATERAL (
        SELECT c.authorized_at, c.revoked_at FROM siwa.consents AS c
        WHERE c.account_id = s.account_id AND c.app_id = s.app_id
        OFFSET 0
    ) AS c
    LEFT JOIN LATERAL (
        SELECT n.given, n.family, n.captured_at FROM siwa.kept_names AS n
        WHERE n.account_id = s.account_id AND n.app_id = s.app_id
            AND (c.revoked_at IS NULL OR c.revoked_at < n.captured_at)
        OFFSET 0
    ) AS n ON true
    LEFT JOIN LATERAL (
        SELECT o.session_id, o.created_at, o.expires_at FROM siwa.account_sessions AS o
        WHERE o.session_id = s.session_id
        OFFSET 0
    ) AS o ON true
    WHERE s.sign_in_id = of_sign_in;
    RETURN answer;
END
$$;
COMMENT ON FUNCTION siwa.answer_sign_in IS 'Returns a settled sign-in with the present state of its person. For siwad_daemon.';

CREATE FUNCTION siwa.reserve_sign_in(
    presented_digest bytea, nonce_digest bytea, code_digest bytea, client_id text, flow text, caller text, attempt bytea,
    sub text, issued_at timestamptz, session_id text, device jsonb
) RETURNS siwa.sign_in_answer
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    app_group  siwa.clients;
    known      siwa.sign_ins;
    answer     siwa.sign_in_answer;
    is_taken   boolean;
    is_repeat  boolean;
BEGIN
    SELECT k.* INTO app_group FROM siwa.clients AS k WHERE k.client_id = reserve_sign_in.client_id;
    IF NOT FOUND THEN
        answer.outcome := 'unknown-client';
        RETURN answer;
    END IF;
    -- Without locks: siwa.settle_sign_in decides. A refusal here leaves the code unused.
    SELECT CASE
        WHEN a.deleted_at IS NOT NULL THEN 'account-deleted'
        WHEN reserve_sign_in.issued_at <= (
            SELECT c.revoked_at FROM siwa.consents AS c
            WHERE c.account_id = a.account_id AND c.app_id = app_group.app_id
        ) THEN 'consent-revoked'
    END
    INTO answer.outcome
    FROM siwa.accounts AS a
    WHERE a.sub = reserve_sign_in.sub AND a.team_id = app_group.team_id;
    IF answer.outcome IS NOT NULL THEN
        RETURN answer;
    END IF;
    is_taken := EXISTS (SELECT FROM siwa.account_sessions AS s WHERE s.session_id = reserve_sign_in.session_id);

    LOOP
        IF NOT is_taken THEN
            INSERT INTO siwa.sign_ins AS s (
                presented_digest, nonce_digest, code_digest, client_id, app_id, flow, caller, attempt, lease_until,
                session_id, device
            )
            VALUES (
                reserve_sign_in.presented_digest, reserve_sign_in.nonce_digest, reserve_sign_in.code_digest,
                reserve_sign_in.client_id, app_group.app_id, reserve_sign_in.flow, reserve_sign_in.caller,
                reserve_sign_in.attempt, clock_timestamp() + interval '15 s', reserve_sign_in.session_id,
                reserve_sign_in.device
            )
            ON CONFLICT DO NOTHING
            RETURNING s.sign_in_id INTO answer.sign_in_id;
            IF FOUND THEN
                answer.outcome := 'reserved';
                RETURN answer;
            END IF;
        END IF;
        -- Waits for a transaction that settles it.
        SELECT s.* INTO known FROM siwa.sign_ins AS s
        WHERE s.presented_digest = reserve_sign_in.presented_digest
        FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        IF is_taken THEN
            answer.outcome := 'session-taken';
            RETURN answer;
        END IF;
        PERFORM FROM siwa.sign_ins AS s
        WHERE s.client_id = reserve_sign_in.client_id AND s.nonce_digest = reserve_sign_in.nonce_digest;
        IF FOUND THEN
            answer.outcome := 'nonce-used';
            RETURN answer;
        END IF;
        -- The row that was in the way has just been given back.
    END LOOP;

    is_repeat := coalesce(
        CASE
            WHEN known.session_id IS NULL AND reserve_sign_in.session_id IS NULL
            THEN known.attempt = reserve_sign_in.attempt
            ELSE known.session_id = reserve_sign_in.session_id
        END,
        false);
    IF (known.client_id, known.nonce_digest, known.code_digest)
        IS DISTINCT FROM (reserve_sign_in.client_id, reserve_sign_in.nonce_digest, reserve_sign_in.code_digest)
    THEN
        answer.outcome := 'token-used';
    ELSIF known.settled_at IS NOT NULL THEN
        IF NOT is_repeat THEN
            answer.outcome := 'token-used';
            RETURN answer;
        END IF;
        answer := siwa.answer_sign_in(known.sign_in_id, 'repeated');
        -- Decided again, because the flow with a code only names no person above.
        IF answer.state = 'deleted' THEN
            answer.outcome := 'account-deleted';
        ELSIF known.signed_in_at <= (
            SELECT c.revoked_at FROM siwa.consents AS c
            WHERE c.account_id = known.account_id AND c.app_id = known.app_id
        ) THEN
            answer.outcome := 'consent-revoked';
        END IF;
    ELSIF known.lease_until > clock_timestamp() THEN
        answer.outcome := CASE WHEN is_repeat THEN 'in-progress' ELSE 'token-used' END;
    ELSIF is_taken THEN
        answer.outcome := 'session-taken';
    ELSE
        -- Another id, so that the process that was too slow can neither settle nor release it.
        UPDATE siwa.sign_ins AS s
        SET sign_in_id = DEFAULT,
            flow = reserve_sign_in.flow,
            caller = reserve_sign_in.caller,
            attempt = reserve_sign_in.attempt,
            received_at = clock_timestamp(),
            lease_until = clock_timestamp() + interval '15 s',
            session_id = reserve_sign_in.session_id,
            code_attempts = s.code_attempts + 1,
            device = reserve_sign_in.device
        WHERE s.sign_in_id = known.sign_in_id
        RETURNING s.sign_in_id INTO answer.sign_in_id;
        answer.outcome := 'reserved';
    END IF;
    RETURN answer;
END
$$;
COMMENT ON FUNCTION siwa.reserve_sign_in IS
    'Reserves a sign-in for 15 seconds before its code is used. Outcomes: reserved; repeated, with the answer, for a settled one
that has the same session id or, without a session, the same attempt; token-used, nonce-used, session-taken, in-progress,
consent-revoked, account-deleted and unknown-client, which change nothing. For siwad_daemon.';

CREATE FUNCTION siwa.refresh_outcome_of(outcome text, error text, attempts integer, of_account bigint, client_id text)
    RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN CASE
        -- The attempt before may have used the code.
        WHEN outcome = 'refused' AND error = 'invalid_grant' AND attempts > 0 THEN 'lost'
        WHEN (outcome = 'none' OR (outcome = 'refused' AND error = 'invalid_grant')) AND EXISTS (
            SELECT FROM siwa.apple_tokens AS t
            WHERE t.account_id = of_account AND t.client_id = refresh_outcome_of.client_id AND t.state = 'valid'
        ) THEN 'kept'
        ELSE outcome
    END;
END
$$;
COMMENT ON FUNCTION siwa.refresh_outcome_of IS
    'Returns the outcome of an exchange as it is stored in siwa.sign_ins.refresh. attempts counts the earlier ones that may have
used the code. For siwad_daemon.';

CREATE FUNCTION siwa.store_refresh_token(
    of_account bigint, client_id text, app_id text, obtained_at timestamptz, sealed bytea, key_name text
) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO siwa.apple_tokens AS t (account_id, client_id, app_id, obtained_at, sealed, key_name, due_at)
    VALUES (
        of_account, store_refresh_token.client_id, store_refresh_token.app_id, store_refresh_token.obtained_at,
        store_refresh_token.sealed, store_refresh_token.key_name, store_refresh_token.obtained_at + interval '25 h'
    )
    ON CONFLICT ON CONSTRAINT apple_tokens_pkey DO UPDATE
    SET app_id = excluded.app_id,
        obtained_at = excluded.obtained_at,
        sealed = excluded.sealed,
        key_name = excluded.key_name,
        validated_at = NULL,
        asked_at = NULL,
        lease_until = NULL,
        due_at = excluded.due_at,
        refusals = 0,
        state = 'valid'
    WHERE t.obtained_at <= excluded.obtained_at;
END
$$;
COMMENT ON FUNCTION siwa.store_refresh_token IS
    'Stores a sealed refresh token unless a later sign-in has stored one. Call it in the transaction of siwa.settle_sign_in.
For siwad_daemon.';

CREATE FUNCTION siwa.settle_sign_in(
    of_sign_in bigint, sub text, email text, email_is_private boolean, signed_in_at timestamptz, given text, family text,
    real_user_status text, refresh text, refresh_error text, code_sealed bytea, code_due_at timestamptz,
    session_id text, created_at timestamptz, expires_at timestamptz
) RETURNS siwa.sign_in_answer
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    known   siwa.sign_ins;
    team    text;
    account bigint;
    is_new  boolean;
    revoked timestamptz;
    became  text;
    answer  siwa.sign_in_answer;
BEGIN
    SELECT s.* INTO known FROM siwa.sign_ins AS s WHERE s.sign_in_id = of_sign_in FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        -- Another process has taken it over.
        answer.outcome := 'in-progress';
        RETURN answer;
    ELSIF known.settled_at IS NOT NULL THEN
        RETURN siwa.answer_sign_in(of_sign_in, 'settled');
    END IF;
    -- A subtransaction, so that a refusal undoes everything.
    BEGIN
        team := (siwa.app_group(known.client_id)).team_id;
        LOOP
            -- As in siwa.record_sign_in, and locked before the consent is read, so that of two first sign-ins one is the first.
            SELECT a.account_id INTO account FROM siwa.accounts AS a
            WHERE a.sub = settle_sign_in.sub AND a.team_id = team
            FOR NO KEY UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO siwa.accounts (team_id, sub) VALUES (team, settle_sign_in.sub)
            ON CONFLICT ON CONSTRAINT accounts_person_is_unique DO NOTHING;
        END LOOP;
        is_new := NOT EXISTS (
            SELECT FROM siwa.consents AS c
            WHERE c.account_id = account AND c.app_id = known.app_id AND c.authorized_at IS NOT NULL
        );
        PERFORM siwa.record_sign_in(
            known.client_id, settle_sign_in.sub, settle_sign_in.email, settle_sign_in.email_is_private,
            settle_sign_in.signed_in_at);
        -- Locked by siwa.record_sign_in.
        SELECT c.revoked_at INTO revoked FROM siwa.consents AS c
        WHERE c.account_id = account AND c.app_id = known.app_id;
        IF revoked >= settle_sign_in.signed_in_at THEN
            RAISE EXCEPTION 'the consent was revoked' USING ERRCODE = 'SW007';
        ELSIF revoked IS NOT NULL THEN
            DELETE FROM siwa.apple_tokens AS t
            WHERE t.account_id = account AND t.app_id = known.app_id AND t.obtained_at <= revoked;
            DELETE FROM siwa.kept_names AS n
            WHERE n.account_id = account AND n.app_id = known.app_id AND n.captured_at <= revoked;
        END IF;
        IF settle_sign_in.given <> '' OR settle_sign_in.family <> '' THEN
            INSERT INTO siwa.kept_names AS n (account_id, app_id, given, family, captured_at)
            VALUES (account, known.app_id, settle_sign_in.given, settle_sign_in.family, settle_sign_in.signed_in_at)
            ON CONFLICT ON CONSTRAINT kept_names_pkey DO UPDATE
            SET given = excluded.given, family = excluded.family, captured_at = excluded.captured_at
            WHERE n.captured_at <= excluded.captured_at;
        END IF;
        IF settle_sign_in.session_id IS NOT NULL THEN
            PERFORM FROM siwa.account_sessions AS s WHERE s.session_id = settle_sign_in.session_id;
            IF FOUND THEN
                RAISE EXCEPTION 'the session id is taken' USING ERRCODE = 'SW004';
            END IF;
            PERFORM siwa.open_session(
                known.client_id, settle_sign_in.sub, settle_sign_in.session_id, settle_sign_in.created_at,
                settle_sign_in.expires_at);
        END IF;
        became := siwa.refresh_outcome_of(
            settle_sign_in.refresh, settle_sign_in.refresh_error, known.code_attempts, account, known.client_id);
        UPDATE siwa.sign_ins AS s
        SET settled_at = clock_timestamp(),
            lease_until = NULL,
            signed_in_at = settle_sign_in.signed_in_at,
            account_id = account,
            session_id = settle_sign_in.session_id,
            new_account = is_new,
            real_user_status = settle_sign_in.real_user_status,
            refresh = became,
            refresh_error = CASE became WHEN 'refused' THEN settle_sign_in.refresh_error END,
            code_sealed = settle_sign_in.code_sealed,
            code_due_at = settle_sign_in.code_due_at
        WHERE s.sign_in_id = of_sign_in;
    EXCEPTION
        WHEN SQLSTATE 'SW001' THEN answer.outcome := 'unknown-client';
        WHEN SQLSTATE 'SW002' THEN answer.outcome := 'account-deleted';
        WHEN SQLSTATE 'SW004' THEN answer.outcome := 'session-taken';
        WHEN SQLSTATE 'SW007' THEN answer.outcome := 'consent-revoked';
    END;
    IF answer.outcome IS NOT NULL THEN
        DELETE FROM siwa.sign_ins AS s WHERE s.sign_in_id = of_sign_in;
        RETURN answer;
    END IF;
    RETURN siwa.answer_sign_in(of_sign_in, 'settled');
END
$$;
COMMENT ON FUNCTION siwa.settle_sign_in IS
    'Records a reserved sign-in, opens its session, stores the name and finishes the row. Outcomes: settled, with the answer; or
consent-revoked, account-deleted, session-taken, unknown-client, which give the row back; or in-progress, if another process took
it over. With refresh stored, call siwa.store_refresh_token next. For siwad_daemon.';

CREATE FUNCTION siwa.claim_exchanges(at_most bigint)
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
    chosen tid[] := ARRAY(
        SELECT s.ctid FROM siwa.sign_ins AS s
        WHERE s.code_due_at <= clock_timestamp() AND (s.lease_until IS NULL OR s.lease_until < clock_timestamp())
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
COMMENT ON FUNCTION siwa.claim_exchanges IS
    'Claims the codes that are due to be traded in the background for a minute, and returns them. For siwad_daemon.';

CREATE FUNCTION siwa.finish_exchange(
    of_sign_in bigint, outcome text, error text, due_at timestamptz, sealed bytea, key_name text
) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    known   siwa.sign_ins;
    deleted timestamptz;
    revoked timestamptz;
    became  text := outcome;
BEGIN
    SELECT s.* INTO known FROM siwa.sign_ins AS s
    WHERE s.sign_in_id = of_sign_in AND s.settled_at IS NOT NULL
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    -- Another process has ended it. Only a token is better than what that one found.
    ELSIF known.refresh <> 'pending' AND (outcome <> 'stored' OR known.refresh = 'stored') THEN
        RETURN known.refresh;
    ELSIF outcome = 'pending' THEN
        UPDATE siwa.sign_ins AS s SET code_due_at = finish_exchange.due_at, lease_until = NULL
        WHERE s.sign_in_id = of_sign_in;
        RETURN outcome;
    ELSIF outcome = 'stored' THEN
        SELECT a.deleted_at INTO deleted FROM siwa.accounts AS a
        WHERE a.account_id = known.account_id
        FOR NO KEY UPDATE;
        SELECT c.revoked_at INTO revoked FROM siwa.consents AS c
        WHERE c.account_id = known.account_id AND c.app_id = known.app_id
        FOR NO KEY UPDATE;
        IF deleted IS NOT NULL OR revoked >= known.signed_in_at THEN
            became := 'lost';
        ELSE
            PERFORM siwa.store_refresh_token(
                known.account_id, known.client_id, known.app_id, known.signed_in_at, finish_exchange.sealed,
                finish_exchange.key_name);
        END IF;
    ELSE
        -- Its own claim has counted this attempt.
        became := siwa.refresh_outcome_of(
            outcome, error, known.code_attempts - 1, known.account_id, known.client_id);
    END IF;
    UPDATE siwa.sign_ins AS s
    SET refresh = became,
        refresh_error = CASE became WHEN 'refused' THEN error END,
        code_sealed = NULL,
        code_due_at = NULL,
        lease_until = NULL
    WHERE s.sign_in_id = of_sign_in;
    RETURN became;
END
$$;
COMMENT ON FUNCTION siwa.finish_exchange IS
    'Stores the outcome of a background exchange, and returns what became of the refresh token; null for an unknown sign-in.
Outcomes: stored, with the sealed token; pending, to try again at due_at; lost and refused, which give the code up. A token of a
person who has revoked the consent since is not stored. For siwad_daemon.';

CREATE OR REPLACE FUNCTION siwa.grant_roles() RETURNS text[]
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- siwad_reader may not read these columns: a token is a kind of credential, and identifies a person.
    secrets constant text[] := ARRAY[
        'notifications.jws', 'dead_letters.body', 'sign_ins.code_sealed', 'apple_tokens.sealed'
    ];
    wanted  constant text[] := ARRAY['siwad_daemon', 'siwad_reader', 'siwad_application'];
    role    text;
    granted text[] := '{}';
    target  record;
BEGIN
    REVOKE ALL ON FUNCTION
        siwa.app_group, siwa.check_identifier, siwa.check_time, siwa.session_expiry, siwa.check_session_end_reason,
        siwa.record_sign_in, siwa.open_session, siwa.rotate_session, siwa.extend_session, siwa.end_session,
        siwa.end_sessions, siwa.sessions_of, siwa.session_is_live,
        siwa.keep_earlier_attempt, siwa.grant_roles,
        siwa.publish_changes, siwa.rebase_publication, siwa.publication_age, siwa.position_at, siwa.endpoint_wants,
        siwa.claim_deliveries, siwa.settle_deliveries,
        siwa.answer_sign_in, siwa.reserve_sign_in, siwa.refresh_outcome_of, siwa.store_refresh_token, siwa.settle_sign_in,
        siwa.claim_exchanges, siwa.finish_exchange
        FROM PUBLIC;
    FOREACH role IN ARRAY wanted LOOP
        -- Roles belong to the cluster. Another database may have created them, and the current role may lack the right to.
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION
                WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA siwa FROM %I', role);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA siwa FROM %I', role);
        EXECUTE format('GRANT USAGE ON SCHEMA siwa TO %I', role);
        -- PostgreSQL checks the right to execute the functions inside a view against the role that reads the view.
        EXECUTE format(
            'GRANT EXECUTE ON FUNCTION siwa.consent_state, siwa.email_state, siwa.change_type, siwa.change_scope TO %I', role);
        granted := granted || role;
    END LOOP;

    IF 'siwad_daemon' = ANY (granted) THEN
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA siwa TO siwad_daemon;
        REVOKE EXECUTE ON FUNCTION siwa.grant_roles, siwa.keep_earlier_attempt FROM siwad_daemon;
        GRANT INSERT, UPDATE ON siwa.accounts, siwa.consents, siwa.signing_keys, siwa.maintenance TO siwad_daemon;
        GRANT INSERT, UPDATE, DELETE ON siwa.account_sessions, siwa.clients TO siwad_daemon;
        GRANT INSERT ON siwa.account_changes, siwa.change_log TO siwad_daemon;
        GRANT UPDATE ON siwa.publication TO siwad_daemon;
        GRANT INSERT, UPDATE, DELETE ON
            siwa.endpoints, siwa.endpoint_states, siwa.endpoint_secrets, siwa.deliveries
            TO siwad_daemon;
        GRANT INSERT, DELETE ON siwa.delivery_attempts TO siwad_daemon;
        GRANT INSERT, UPDATE, DELETE ON siwa.sign_ins, siwa.apple_tokens, siwa.kept_names TO siwad_daemon;
        -- Triggers set which database role resolved or replayed a letter, and keep its earlier attempts.
        GRANT
            INSERT (
                received_at, last_received_at, reason, detail, body, token_digest, jti, aud, sub, event_type, verified_kid,
                verified_at
            ),
            UPDATE (
                last_received_at, deliveries, reason, detail, status, attempts, body, jti, aud, sub, event_type, verified_kid,
                verified_at, last_failed_at, last_failed_by, resolved_at, resolved_by, outcome, note
            ),
            DELETE
            ON siwa.dead_letters TO siwad_daemon;
        -- Defaults set the other columns: the time and the database role.
        GRANT INSERT (operator, action, target, note, affected) ON siwa.operator_actions TO siwad_daemon;
        -- DELETE is required by siwa.drop_notification_partition. Erasure updates only the token.
        GRANT INSERT, DELETE, UPDATE (jws) ON siwa.notifications TO siwad_daemon;
    END IF;
    IF 'siwad_application' = ANY (granted) THEN
        GRANT SELECT ON
            siwa.account_states, siwa.account_history, siwa.changes, siwa.sessions, siwa.live_sessions,
            siwa.undeliverable_addresses, siwa.refresh_tokens, siwa.account_names
            TO siwad_application;
        -- Not the device, which is for support.
        GRANT SELECT (
            sign_in_id, presented_digest, nonce_digest, code_digest, client_id, app_id, flow, caller, attempt, signed_in_at,
            received_at, lease_until, settled_at, account_id, session_id, new_account, real_user_status, refresh,
            refresh_error, code_due_at, code_attempts
        ) ON siwa.sign_ins TO siwad_application;
        GRANT EXECUTE ON FUNCTION
            siwa.record_sign_in, siwa.open_session, siwa.rotate_session, siwa.extend_session, siwa.end_session,
            siwa.end_sessions, siwa.sessions_of, siwa.session_is_live, siwa.position_at
            TO siwad_application;
    END IF;
    IF 'siwad_reader' = ANY (granted) THEN
        GRANT EXECUTE ON FUNCTION siwa.publication_age, siwa.position_at, siwa.endpoint_wants TO siwad_reader;
    END IF;

    -- Granted by column, and not on partitions, which would expose the columns that their parent hides.
    FOR target IN
        SELECT
            c.relname AS name,
            string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS all_columns,
            string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
                FILTER (
                    WHERE c.relname || '.' || a.attname <> ALL (secrets) AND c.relname <> 'endpoint_secrets'
                ) AS open_columns
        FROM pg_class AS c
        JOIN pg_attribute AS a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'siwa'::regnamespace
            AND c.relkind IN ('r', 'p', 'v')
            AND NOT c.relispartition
            AND a.attnum > 0
            AND NOT a.attisdropped
        GROUP BY c.relname
    LOOP
        IF 'siwad_daemon' = ANY (granted) THEN
            EXECUTE format('GRANT SELECT ON siwa.%I TO siwad_daemon', target.name);
        END IF;
        IF 'siwad_reader' = ANY (granted) AND target.open_columns = target.all_columns THEN
            EXECUTE format('GRANT SELECT ON siwa.%I TO siwad_reader', target.name);
        ELSIF 'siwad_reader' = ANY (granted) AND target.open_columns IS NOT NULL THEN
            EXECUTE format('GRANT SELECT (%s) ON siwa.%I TO siwad_reader', target.open_columns, target.name);
        END IF;
    END LOOP;
    RETURN granted;
END
$$;

SELECT siwa.grant_roles();
