-- What the examples need in addition to siwad's schema: a role that may use it, and two tables of the application's own.
CREATE ROLE shop LOGIN;
GRANT siwad_application TO shop;
CREATE SCHEMA shop AUTHORIZATION shop;
SET ROLE shop;
CREATE TABLE shop.subscribers (
    sub text PRIMARY KEY,
    email text
);
-- The position of the last change that the application has acted on: one row.
CREATE TABLE shop.feed (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    position bigint NOT NULL
);
INSERT INTO shop.feed (position) VALUES (siwa.position_at(now()));
