-- Accounts and consents: the registers of the state machine, and the functions that derive every state from them.
--
-- Promise: a register only ever moves one way (see the column comments), so that applying the same set of facts in any
-- order, any number of times and in any split ends in the same rows. No state is stored; states are derived here only.

CREATE SCHEMA IF NOT EXISTS siwa;
COMMENT ON SCHEMA siwa IS 'Sign in with Apple: accounts, consents, sessions and notifications, kept by siwad.';

CREATE TABLE siwa.clients (
    client_id text COLLATE "C" NOT NULL,
    app_id    text COLLATE "C" NOT NULL,
    team_id   text COLLATE "C" NOT NULL,
    CONSTRAINT clients_pkey PRIMARY KEY (client_id),
    CONSTRAINT clients_client_id_is_not_empty CHECK (client_id <> ''),
    CONSTRAINT clients_app_id_is_not_empty CHECK (app_id <> ''),
    CONSTRAINT clients_team_id_has_apples_shape CHECK (team_id ~ '^[A-Z0-9]{10}$')
);
COMMENT ON TABLE siwa.clients IS
    'The client ids of every app group, as SIWAD_APPS names them; brought up to date whenever the daemon starts.';
COMMENT ON COLUMN siwa.clients.client_id IS 'A bundle id or Services ID of the group.';
COMMENT ON COLUMN siwa.clients.app_id IS 'The group''s primary App ID: the aud of its notifications.';

CREATE TABLE siwa.accounts (
    account_id             bigint GENERATED ALWAYS AS IDENTITY,
    team_id                text COLLATE "C" NOT NULL,
    sub                    text COLLATE "C" NOT NULL,
    revision               bigint NOT NULL DEFAULT 1,
    deleted_at             timestamptz,
    forwarding_disabled_at timestamptz,
    forwarding_enabled_at  timestamptz,
    email_observed_at      timestamptz,
    email                  text,
    email_is_private       boolean,
    first_heard_at         timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT accounts_pkey PRIMARY KEY (account_id),
    -- sub first: it decides nearly every comparison, and a search by sub alone uses the same index.
    CONSTRAINT accounts_person_is_unique UNIQUE (sub, team_id),
    CONSTRAINT accounts_sub_is_not_empty CHECK (sub <> ''),
    CONSTRAINT accounts_email_was_observed CHECK (email IS NULL OR email_observed_at IS NOT NULL)
) WITH (fillfactor = 80);
COMMENT ON TABLE siwa.accounts IS
    'One row per person and developer team. The only table that knows a person by (team_id, sub); all others hold account_id.';
COMMENT ON COLUMN siwa.accounts.sub IS 'Apple''s identifier of the person within the team; opaque.';
COMMENT ON COLUMN siwa.accounts.revision IS
    'One more with every change of the row: tells a writer that its snapshot of the row was not the latest.';
COMMENT ON COLUMN siwa.accounts.deleted_at IS 'Register, earliest wins: event_time of the account deletion. Set once, for good.';
COMMENT ON COLUMN siwa.accounts.forwarding_disabled_at IS 'Register, latest wins: event_time of email-disabled.';
COMMENT ON COLUMN siwa.accounts.forwarding_enabled_at IS 'Register, latest wins: event_time of email-enabled.';
COMMENT ON COLUMN siwa.accounts.email_observed_at IS
    'Register, latest wins: when email and email_is_private were seen. Equal times: the greater address, then the greater flag.';

-- Plain, not partial on deliverability: an index that mentions a register would make every move of it a non-HOT update.
CREATE INDEX accounts_email ON siwa.accounts (email) WHERE email IS NOT NULL;

CREATE TABLE siwa.consents (
    account_id    bigint NOT NULL,
    app_id        text COLLATE "C" NOT NULL,
    revision      bigint NOT NULL DEFAULT 1,
    authorized_at timestamptz,
    revoked_at    timestamptz,
    CONSTRAINT consents_pkey PRIMARY KEY (account_id, app_id),
    CONSTRAINT consents_account_exists FOREIGN KEY (account_id) REFERENCES siwa.accounts (account_id)
) WITH (fillfactor = 80);
COMMENT ON TABLE siwa.consents IS 'One row per person and app group: consent is given and revoked per group.';
COMMENT ON COLUMN siwa.consents.revision IS 'As siwa.accounts.revision.';
COMMENT ON COLUMN siwa.consents.authorized_at IS 'Register, latest wins: when the person last signed in to an app of the group.';
COMMENT ON COLUMN siwa.consents.revoked_at IS 'Register, latest wins: event_time of consent-revoked.';

CREATE FUNCTION siwa.consent_state(authorized_at timestamptz, revoked_at timestamptz) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE
        WHEN revoked_at IS NOT NULL AND (authorized_at IS NULL OR revoked_at >= authorized_at) THEN 'revoked'
        WHEN authorized_at IS NOT NULL THEN 'authorized'
        ELSE 'unknown'
    END;
COMMENT ON FUNCTION siwa.consent_state IS
    'authorized, revoked or unknown (never signed in, never revoked). A tie is revoked: the safe side.';

CREATE FUNCTION siwa.forwarding_state(disabled_at timestamptz, enabled_at timestamptz) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE
        WHEN disabled_at IS NOT NULL AND (enabled_at IS NULL OR disabled_at >= enabled_at) THEN 'undeliverable'
        ELSE 'deliverable'
    END;
COMMENT ON FUNCTION siwa.forwarding_state IS
    'Whether Apple''s relay forwards mail to the person: deliverable or undeliverable. A tie is undeliverable.';

CREATE FUNCTION siwa.observation_wins(
    at timestamptz, email text, is_private boolean, known_at timestamptz, known_email text, known_is_private boolean
) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN coalesce(
        at > known_at
        OR (at = known_at AND email COLLATE "C" > known_email COLLATE "C")
        OR (
            at = known_at AND email = known_email
            AND coalesce(is_private::integer, -1) > coalesce(known_is_private::integer, -1)
        ),
        at IS NOT NULL AND known_at IS NULL
    );
COMMENT ON FUNCTION siwa.observation_wins IS
    'Whether an observed address replaces the known one: by time, then address, then flag, so that equal times converge too.';

CREATE VIEW siwa.account_states AS
SELECT
    a.team_id,
    a.sub,
    c.app_id,
    CASE WHEN a.deleted_at IS NOT NULL THEN 'deleted' ELSE siwa.consent_state(c.authorized_at, c.revoked_at) END AS state,
    c.authorized_at,
    c.revoked_at,
    a.deleted_at,
    a.email,
    a.email_is_private,
    siwa.forwarding_state(a.forwarding_disabled_at, a.forwarding_enabled_at) = 'deliverable'
        AND (a.deleted_at IS NULL OR a.email_is_private IS FALSE) AS email_deliverable,
    a.account_id
FROM siwa.accounts AS a
JOIN siwa.consents AS c USING (account_id);
COMMENT ON VIEW siwa.account_states IS
    'One row per person and app group. state: authorized, revoked, deleted, or unknown (heard of, never signed in here).';
COMMENT ON COLUMN siwa.account_states.email_deliverable IS
    'False when the relay rejects mail, or the account is deleted and the address is not known to be a real one.';

CREATE VIEW siwa.undeliverable_addresses AS
SELECT
    a.team_id,
    a.email,
    CASE WHEN d.by_deletion THEN a.deleted_at ELSE a.forwarding_disabled_at END AS since,
    CASE WHEN d.by_deletion THEN 'account-deleted' ELSE 'forwarding-disabled' END AS reason
FROM siwa.accounts AS a
CROSS JOIN LATERAL (SELECT a.deleted_at IS NOT NULL AND a.email_is_private IS NOT FALSE AS by_deletion) AS d
WHERE a.email IS NOT NULL
    AND (
        d.by_deletion
        OR siwa.forwarding_state(a.forwarding_disabled_at, a.forwarding_enabled_at) = 'undeliverable'
    );
COMMENT ON VIEW siwa.undeliverable_addresses IS
    'Addresses that mail must not be sent to; reason: forwarding-disabled or account-deleted. A mailer joins against this.';

CREATE TABLE siwa.account_changes (
    change_id      bigint GENERATED ALWAYS AS IDENTITY,
    account_id     bigint NOT NULL,
    app_id         text COLLATE "C" NOT NULL,
    facet          text NOT NULL,
    from_state     text NOT NULL,
    to_state       text NOT NULL,
    event_time     timestamptz NOT NULL,
    recorded_at    timestamptz NOT NULL DEFAULT now(),
    jti            text COLLATE "C",
    sessions_ended integer NOT NULL DEFAULT 0,
    CONSTRAINT account_changes_pkey PRIMARY KEY (change_id),
    CONSTRAINT account_changes_facet_is_known CHECK (facet IN ('consent', 'account', 'email')),
    CONSTRAINT account_changes_states_fit_the_facet CHECK (
        CASE facet
            WHEN 'consent' THEN from_state IN ('unknown', 'authorized', 'revoked') AND to_state IN ('authorized', 'revoked')
            WHEN 'account' THEN from_state = 'active' AND to_state = 'deleted'
            WHEN 'email' THEN from_state IN ('deliverable', 'undeliverable') AND to_state IN ('deliverable', 'undeliverable')
        END
    ),
    CONSTRAINT account_changes_something_changed CHECK (from_state <> to_state OR sessions_ended > 0),
    CONSTRAINT account_changes_sessions_ended_is_a_count CHECK (sessions_ended >= 0)
);
-- No foreign key to accounts: whoever writes here has just read the account, accounts are never removed, and the check would
-- cost more than the row.
CREATE INDEX account_changes_account ON siwa.account_changes (account_id, change_id);
COMMENT ON TABLE siwa.account_changes IS
    'One row per real change, written in the transaction that made it. Read it through siwa.account_history.';
COMMENT ON COLUMN siwa.account_changes.app_id IS 'The app group that the cause came from.';
COMMENT ON COLUMN siwa.account_changes.jti IS 'The notification that caused the change; null when a sign-in did.';
COMMENT ON COLUMN siwa.account_changes.sessions_ended IS
    'Live sessions that the change ended. A late revocation may end old sessions while a newer sign-in keeps the consent.';

CREATE VIEW siwa.account_history AS
SELECT
    a.team_id,
    a.sub,
    h.app_id,
    h.facet,
    h.from_state,
    h.to_state,
    h.event_time,
    h.recorded_at,
    h.jti,
    h.sessions_ended,
    h.account_id,
    h.change_id
FROM siwa.account_changes AS h
JOIN siwa.accounts AS a USING (account_id);
COMMENT ON VIEW siwa.account_history IS
    'One row per change of state. facet: consent, account or email. Ordered by change_id, it is the order of commit per account.';
