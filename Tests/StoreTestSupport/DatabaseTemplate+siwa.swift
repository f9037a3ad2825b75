package import AccountStore
package import AppleTokens
import Postgres
import Schema
package import TestSupport

extension DatabaseTemplate {
    /// Two teams, the first with two app groups, one of which has a Services ID.
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
    /// A notification as verification would pass it on; the token is a stand-in.
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
