/// SQL that makes commits wait at their very end, everything else of their transactions being done.
package enum CommitStall {
    /// From here on each commit that brings an account not known before waits, in this database.
    package static let begin = """
        CREATE FUNCTION public.stall() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON siwa.accounts DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.stall();
        SELECT pg_advisory_lock(4711);
        """

    /// Lets them go on; run it on the same connection.
    package static let end = "SELECT pg_advisory_unlock(4711)"

    /// One row for each commit that waits.
    package static let waiting =
        "SELECT 1::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        + " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
}
