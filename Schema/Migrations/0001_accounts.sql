-- Accounts and consents: registers of event times, and the functions that derive every state from them.
--
-- Each register moves in one direction only (see the column comments). The same set of facts therefore ends in the same rows,
-- whatever their order, repetition or division into batches. No state is stored: the functions and views below derive it.

CREATE SCHEMA IF NOT EXISTS siwa;
COMMENT ON SCHEMA siwa IS 'Sign in with Apple: accounts, consents, sessions and notifications, maintained by siwad.';

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
    'The client ids of every app group. A daemon adds and updates the client ids of its SIWAD_APPS when it starts or reloads.
Only the command "siwad clients remove" removes a client id.';
COMMENT ON COLUMN siwa.clients.client_id IS 'A bundle id or Services ID of the app group.';
COMMENT ON COLUMN siwa.clients.app_id IS 'The primary App ID of the group: the aud of its notifications.';

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
    erased_at              timestamptz,
    CONSTRAINT accounts_pkey PRIMARY KEY (account_id),
    -- sub comes first because it decides nearly every comparison, and because searches by sub alone use this index.
    CONSTRAINT accounts_person_is_unique UNIQUE (sub, team_id),
    CONSTRAINT accounts_sub_is_not_empty CHECK (sub <> ''),
    CONSTRAINT accounts_email_was_observed CHECK (email IS NULL OR email_observed_at IS NOT NULL),
    CONSTRAINT accounts_erased_is_a_tombstone CHECK (
        erased_at IS NULL
        OR (deleted_at IS NOT NULL AND email IS NULL AND email_is_private IS NULL AND email_observed_at = 'infinity')
    )
) WITH (fillfactor = 80);
COMMENT ON TABLE siwa.accounts IS
    'One row per person and developer team. Only this table identifies a person by (team_id, sub); others refer to account_id.';
COMMENT ON COLUMN siwa.accounts.sub IS 'Apple''s opaque identifier of the person within the team.';
COMMENT ON COLUMN siwa.accounts.revision IS 'Incremented by every change of the row.';
COMMENT ON COLUMN siwa.accounts.deleted_at IS
    'Register, the earliest value wins: event_time of the account deletion. Never cleared.';
COMMENT ON COLUMN siwa.accounts.forwarding_disabled_at IS 'Register, the latest value wins: event_time of email-disabled.';
COMMENT ON COLUMN siwa.accounts.forwarding_enabled_at IS 'Register, the latest value wins: event_time of email-enabled.';
COMMENT ON COLUMN siwa.accounts.email_observed_at IS
    'Register, the latest value wins: when email and email_is_private were observed. At equal times the greater address wins,
then the greater flag.';
COMMENT ON COLUMN siwa.accounts.erased_at IS
    'When the personal data of a deleted account were erased. email_observed_at is then infinity, so no late, repeated or
replayed notification can store an address again.';

-- Finds a person by reading one page. Every notification needs this search, and in a large database it causes most page reads.
-- This index has half the size of the unique index.
CREATE INDEX accounts_sub ON siwa.accounts USING hash (sub);
-- No index contains a register that moves more than once, so updates of a row stay HOT.
CREATE INDEX accounts_email ON siwa.accounts (email) WHERE email IS NOT NULL;
CREATE INDEX accounts_erased ON siwa.accounts (erased_at) WHERE erased_at IS NOT NULL;

CREATE TABLE siwa.consents (
    account_id    bigint NOT NULL,
    app_id        text COLLATE "C" NOT NULL,
    revision      bigint NOT NULL DEFAULT 1,
    authorized_at timestamptz,
    revoked_at    timestamptz,
    CONSTRAINT consents_pkey PRIMARY KEY (account_id, app_id),
    CONSTRAINT consents_account_exists FOREIGN KEY (account_id) REFERENCES siwa.accounts (account_id)
) WITH (fillfactor = 80);
COMMENT ON TABLE siwa.consents IS 'One row per person and app group. People give and revoke consent per group.';
COMMENT ON COLUMN siwa.consents.revision IS 'Incremented by every change of the row.';
COMMENT ON COLUMN siwa.consents.authorized_at IS
    'Register, the latest value wins: iat of the last sign-in to an app of the group.';
COMMENT ON COLUMN siwa.consents.revoked_at IS 'Register, the latest value wins: event_time of consent-revoked.';

-- Reads one page instead of the three levels of the primary key, for the same reason as accounts_sub.
CREATE INDEX consents_account ON siwa.consents USING hash (account_id);

CREATE FUNCTION siwa.consent_state(authorized_at timestamptz, revoked_at timestamptz) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE
        WHEN revoked_at IS NOT NULL AND (authorized_at IS NULL OR revoked_at >= authorized_at) THEN 'revoked'
        WHEN authorized_at IS NOT NULL THEN 'authorized'
        ELSE 'unknown'
    END;
COMMENT ON FUNCTION siwa.consent_state IS
    'Returns authorized, revoked or unknown (never signed in, never revoked). Equal times count as revoked, the safe choice.';

CREATE FUNCTION siwa.email_state(disabled_at timestamptz, enabled_at timestamptz, is_private boolean) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE
        WHEN is_private IS NOT FALSE AND disabled_at IS NOT NULL AND (enabled_at IS NULL OR disabled_at >= enabled_at)
        THEN 'undeliverable'
        ELSE 'deliverable'
    END;
COMMENT ON FUNCTION siwa.email_state IS
    'Returns deliverable or undeliverable. Forwarding applies to relay addresses, and to addresses that may be relay addresses
(is_private is null), but not to an address known to be real. Equal times count as undeliverable, which is the safe choice.';

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
    'Returns whether an observed address replaces the known one: compares the times, then the addresses, then the flags, so that
observations of the same time converge too.';

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
    siwa.email_state(a.forwarding_disabled_at, a.forwarding_enabled_at, a.email_is_private) = 'deliverable'
        AND (a.deleted_at IS NULL OR a.email_is_private IS FALSE) AS email_deliverable,
    a.account_id
FROM siwa.accounts AS a
JOIN siwa.consents AS c USING (account_id);
COMMENT ON VIEW siwa.account_states IS
    'One row per person and app group. state: authorized, revoked, deleted, or unknown (no sign-in is
recorded).';
COMMENT ON COLUMN siwa.account_states.email_deliverable IS
    'False if the relay rejects mail or the account is deleted, unless the address is known to be real.';

CREATE VIEW siwa.undeliverable_addresses AS
SELECT
    a.team_id,
    a.email,
    CASE WHEN a.deleted_at IS NOT NULL THEN a.deleted_at ELSE a.forwarding_disabled_at END AS since,
    CASE WHEN a.deleted_at IS NOT NULL THEN 'account-deleted' ELSE 'forwarding-disabled' END AS reason
FROM siwa.accounts AS a
WHERE a.email IS NOT NULL
    AND a.email_is_private IS NOT FALSE
    AND (
        a.deleted_at IS NOT NULL
        OR siwa.email_state(a.forwarding_disabled_at, a.forwarding_enabled_at, a.email_is_private) = 'undeliverable'
    );
COMMENT ON VIEW siwa.undeliverable_addresses IS
    'Addresses that must not receive mail. reason: forwarding-disabled or account-deleted. Mailers join against this view.';
