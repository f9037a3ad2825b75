-- Finds the notifications of the last minutes, once a second, for siwad tail. A BRIN index costs writers next to nothing, and
-- recorded_at grows with the place of a row. Without autosummarize, the rows since the last VACUUM would be read each time.
CREATE INDEX notifications_recorded_at ON siwa.notifications USING brin (recorded_at) WITH (autosummarize = on);
