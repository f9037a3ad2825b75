-- Tables of the service for sign-ins (PostgreSQL 15). synchronous_commit keeps its default, on.
BEGIN;
CREATE TABLE account (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    apple_sub    text NOT NULL UNIQUE,
    state        text NOT NULL DEFAULT 'authorized',
    email        text,
    is_private   boolean NOT NULL DEFAULT false,
    consented_at timestamptz NOT NULL DEFAULT now(),
    revoked_at   timestamptz
);
CREATE TABLE session (
    id         text PRIMARY KEY,
    account_id bigint NOT NULL REFERENCES account (id) ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    ended_at   timestamptz
);
CREATE INDEX session_live ON session (account_id) WHERE ended_at IS NULL;
-- An identity token and a nonce can be used once.
CREATE TABLE sign_in (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token_digest bytea NOT NULL UNIQUE,
    nonce_digest bytea NOT NULL UNIQUE,
    client_id    text NOT NULL,
    caller       text NOT NULL,
    signed_in_at timestamptz NOT NULL,
    received_at  timestamptz NOT NULL DEFAULT now(),
    account_id   bigint NOT NULL REFERENCES account (id) ON DELETE CASCADE,
    session_id   text NOT NULL
);
CREATE INDEX sign_in_received ON sign_in (received_at);

-- One round trip, one implicit transaction.
CREATE FUNCTION sign_in(
    p_token bytea, p_nonce bytea, p_client text, p_caller text, p_sub text, p_email text, p_private boolean,
    p_at timestamptz, p_session text, p_expires timestamptz,
    OUT sign_in_id bigint, OUT account bigint, OUT is_new boolean, OUT state text
) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO account AS a (apple_sub, email, is_private, consented_at) VALUES (p_sub, p_email, p_private, p_at)
    ON CONFLICT (apple_sub) DO UPDATE
        SET email = coalesce(p_email, a.email), is_private = p_private, consented_at = greatest(a.consented_at, p_at)
    RETURNING a.id, xmax = 0, a.state INTO account, is_new, state;
    INSERT INTO sign_in (token_digest, nonce_digest, client_id, caller, signed_in_at, account_id, session_id)
    VALUES (p_token, p_nonce, p_client, p_caller, p_at, account, p_session) RETURNING id INTO sign_in_id;
    INSERT INTO session (id, account_id, created_at, expires_at) VALUES (p_session, account, p_at, p_expires);
END $$;
COMMIT;
