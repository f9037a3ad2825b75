package import AccountStore
package import AppleTokens
package import Basics
import Postgres
import Schema
package import TestSupport

extension DatabaseTemplate {
    /// Two teams. The first has two app groups, one with a Services ID.
    package static let siwaAudiences: AudienceMap = {
        do {
            return try AudienceMap(
                parsing:
                    "AAAAAAAAAA/com.example.one+com.example.web,AAAAAAAAAA/com.example.two,BBBBBBBBBB/com.example.other"
            )
        } catch {
            preconditionFailure("\(error)")
        }
    }()

    /// Migrated, with the clients of ``siwaAudiences``.
    package static let siwa = DatabaseTemplate("siwa") { settings in
        let connection = try await PostgresConnection.connect(settings)
        try await Migrator(Schema.migrations, schema: Schema.name).up(on: connection)
        try await connection.withSession { session throws(PostgresError) in
            try Clients.add(siwaAudiences, in: session)
        }
        await connection.close()
    }
}

extension ReceivedNotification {
    /// A notification as verification returns it, with a placeholder token.
    package static func sample(
        _ type: String,
        sub: String,
        at time: WallTime,
        id: String,
        team: String = "AAAAAAAAAA",
        app: String = "com.example.one",
        email: String? = nil,
        emailIsPrivate: Bool? = nil
    ) -> ReceivedNotification {
        guard let kind = AccountEvent.Kind(appleType: type) else {
            preconditionFailure("\(type) is not an event type of Apple's")
        }
        let issued = time + .seconds(10)
        return ReceivedNotification(
            VerifiedNotification(
                id: NotificationID(id),
                issuedAt: issued,
                expiresAt: issued + .seconds(86_400),
                team: TeamID(team),
                app: AppID(app),
                audience: app,
                event: AccountEvent(
                    kind: kind,
                    rawType: type,
                    subject: Subject(sub),
                    time: time,
                    email: email,
                    emailIsPrivate: emailIsPrivate
                ),
                keyID: "test",
                token: Array("token of \(id)".utf8)
            ),
            receivedAt: issued + .seconds(1)
        )
    }
}

/// SQL that stalls commits at their very end, after all other work of the transaction.
package enum CommitStall {
    /// From now on, each commit in this database that adds an account waits.
    package static let begin = """
        CREATE FUNCTION public.stall() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON siwa.accounts DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.stall();
        SELECT pg_advisory_lock(4711);
        """

    /// Releases the waiting commits. Run it on the same connection.
    package static let end = "SELECT pg_advisory_unlock(4711)"

    /// Returns one row for each waiting commit.
    package static let waiting =
        "SELECT 1::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        + " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
}
