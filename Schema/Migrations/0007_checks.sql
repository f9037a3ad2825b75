-- The same checks for less: PostgreSQL parses and plans the CHECKs of a table anew for every statement that writes to it, but
-- keeps those of a domain, and the body of a function, for as long as the connection lives.
--
-- Promise: what was refused before is refused, with SQLSTATE 23514 as before. No table is rewritten.

CREATE DOMAIN siwa.event_type AS text COLLATE "C";
COMMENT ON DOMAIN siwa.event_type IS 'As Apple spells it.';
CREATE DOMAIN siwa.notification_outcome AS text COLLATE "C";
COMMENT ON DOMAIN siwa.notification_outcome IS 'What a notification did.';
CREATE DOMAIN siwa.notification_source AS text COLLATE "C";
COMMENT ON DOMAIN siwa.notification_source IS 'How a notification came to be recorded.';

-- To a domain without a check a column goes as it is; the check then only reads.
ALTER TABLE siwa.notifications
    ALTER COLUMN event_type TYPE siwa.event_type,
    ALTER COLUMN outcome TYPE siwa.notification_outcome,
    ALTER COLUMN source TYPE siwa.notification_source,
    DROP CONSTRAINT notifications_event_type_is_known,
    DROP CONSTRAINT notifications_outcome_is_known,
    DROP CONSTRAINT notifications_source_is_known;
ALTER DOMAIN siwa.event_type ADD CONSTRAINT event_type_is_known CHECK (
    VALUE IN ('email-disabled', 'email-enabled', 'consent-revoked', 'account-delete', 'account-deleted')
);
ALTER DOMAIN siwa.notification_outcome ADD CONSTRAINT notification_outcome_is_known CHECK (
    VALUE IN ('applied', 'superseded', 'unchanged')
);
ALTER DOMAIN siwa.notification_source ADD CONSTRAINT notification_source_is_known CHECK (
    VALUE IN ('endpoint', 'spool', 'replay')
);

CREATE FUNCTION siwa.is_change(facet text, from_state text, to_state text, sessions_ended integer) RETURNS boolean
    -- Not in SQL: such a function is put in place of its call, and would be planned each time after all.
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE facet
        WHEN 'consent' THEN from_state IN ('unknown', 'authorized', 'revoked') AND to_state IN ('authorized', 'revoked')
        WHEN 'account' THEN from_state = 'active' AND to_state = 'deleted'
        WHEN 'email' THEN from_state IN ('deliverable', 'undeliverable') AND to_state IN ('deliverable', 'undeliverable')
        ELSE false
    END
    AND CASE WHEN from_state = to_state THEN sessions_ended > 0 ELSE sessions_ended >= 0 END;
END
$$;
COMMENT ON FUNCTION siwa.is_change IS
    'Whether a row may stand in siwa.account_changes: states that the facet has, and something that changed.';

ALTER TABLE siwa.account_changes
    DROP CONSTRAINT account_changes_facet_is_known,
    DROP CONSTRAINT account_changes_states_fit_the_facet,
    DROP CONSTRAINT account_changes_something_changed,
    DROP CONSTRAINT account_changes_sessions_ended_is_a_count,
    ADD CONSTRAINT account_changes_tell_a_change CHECK (siwa.is_change(facet, from_state, to_state, sessions_ended));
