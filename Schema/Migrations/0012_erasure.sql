-- Deletions that stay on their page. An index on deleted_at had each of them write the person anew into all five indexes of
-- accounts: pages that little else asks for, and that stay on the disk where the database is larger than the memory. Whose data
-- are due to be erased is now found by looking through the table, a stretch at a time, once an hour.
--
-- Promise: the same data are erased as before. No table is rewritten.

DROP INDEX siwa.accounts_to_erase;
