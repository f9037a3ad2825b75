-- Dead letters as operators work with them: found by filter, replayed, discarded, reopened.
--
-- Promise: a letter leaves the status open in the transaction of its effects and never loses why it was kept. What the last
-- attempt in vain found stands in the letter; what those before it found stands in siwa.dead_letter_attempts.

ALTER TABLE siwa.dead_letters
    ADD COLUMN outcome text COLLATE "C",
    ADD COLUMN last_failed_at timestamptz,
    ADD COLUMN last_failed_by text,
    ADD CONSTRAINT dead_letters_outcome_is_known CHECK (outcome IN ('applied', 'superseded', 'unchanged', 'duplicate')),
    ADD CONSTRAINT dead_letters_only_replayed_have_an_outcome CHECK (outcome IS NULL OR status = 'replayed');
COMMENT ON COLUMN siwa.dead_letters.outcome IS
    'What the replay did, as siwa.notifications.outcome; duplicate: the notification had been recorded before.';
COMMENT ON COLUMN siwa.dead_letters.reason IS 'What the last attempt in vain found.';
COMMENT ON COLUMN siwa.dead_letters.last_failed_at IS 'When it was last replayed in vain; null: never.';
COMMENT ON COLUMN siwa.dead_letters.last_failed_by IS 'The operator who did.';
COMMENT ON COLUMN siwa.dead_letters.note IS 'Why it was resolved, or reopened, in the operator''s words.';

-- Letters are looked through in the order of their ids. The facts that a filter or a count asks for lie in an index of their
-- own, a twelfth of the table with its bodies, so that a million of them can be looked through whatever the filter.
CREATE INDEX dead_letters_facts ON siwa.dead_letters (id) INCLUDE (status, reason, aud, event_type, received_at);

CREATE TABLE siwa.dead_letter_attempts (
    letter_id    bigint NOT NULL,
    attempt      integer NOT NULL,
    attempted_at timestamptz NOT NULL,
    operator     text,
    reason       text COLLATE "C" NOT NULL,
    detail       text NOT NULL,
    CONSTRAINT dead_letter_attempts_pkey PRIMARY KEY (letter_id, attempt),
    CONSTRAINT dead_letter_attempts_letter_exists
        FOREIGN KEY (letter_id) REFERENCES siwa.dead_letters (id) ON DELETE CASCADE,
    CONSTRAINT dead_letter_attempts_attempt_is_counted_from_one CHECK (attempt > 0)
);
COMMENT ON TABLE siwa.dead_letter_attempts IS
    'What attempts in vain at a letter found, but for the last of them, which stands in siwa.dead_letters.';
COMMENT ON COLUMN siwa.dead_letter_attempts.operator IS 'Who replayed it; null for the attempt at receipt.';

COMMENT ON COLUMN siwa.operator_actions.affected IS
    'How many it changed. For dead letters: how many it set out to change, so that a run that was cut short has its row;
which of them were changed, siwa.dead_letters says.';
