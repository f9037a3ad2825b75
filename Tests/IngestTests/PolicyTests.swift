import AppleTokens
import AppleSimulator
import StoreTestSupport
import Testing

@testable import Ingest

@Suite("Another policy")
struct PolicyTests {
    @Test("It holds from the next request on, on lanes that are in use.")
    func replaced() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let app = "com.example.late"
            #expect(await fixture.client.answer(try fixture.body(app: app)) == .acknowledged)
            let audiences = try AudienceMap(parsing: "AAAAAAAAAA/com.example.one,AAAAAAAAAA/\(app)")
            fixture.service.replace(policy: NotificationPolicy(audiences: audiences))
            #expect(await fixture.client.answer(try fixture.body(app: app, id: "late")) == .acknowledged)
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["late"])
        }
    }
}
