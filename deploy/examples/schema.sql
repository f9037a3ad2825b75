-- What the examples need in addition to siwad's schema: a role that may use it, and two tables of the application's own.
CREATE ROLE shop LOGIN;
GRANT siwad_application TO shop;
CREATE SCHEMA shop AUTHORIZATION shop;
SET ROLE shop;
CREATE TABLE shop.subscribers (
    sub text PRIMARY KEY,
    email text
);
-- The changes that the application has acted on, so that it acts on each once.
CREATE TABLE shop.handled_changes (
    change_id bigint PRIMARY KEY,
    handled_at timestamptz NOT NULL DEFAULT now()
);
CREATE FUNCTION shop.next_changes() RETURNS TABLE (sub text, facet text, to_state text)
    LANGUAGE sql
BEGIN ATOMIC
    WITH found AS (
        INSERT INTO shop.handled_changes (change_id)
        SELECT h.change_id FROM siwa.account_history AS h WHERE h.recorded_at > now() - interval '1 day'
        ON CONFLICT DO NOTHING
        RETURNING change_id
    )
    SELECT h.sub, h.facet, h.to_state FROM siwa.account_history AS h JOIN found USING (change_id) ORDER BY h.change_id;
END;
COMMENT ON FUNCTION shop.next_changes IS
    'Returns the changes of the last day that were never returned, and marks them. Act on them in the same transaction: if it
fails, the next call returns them again.';
