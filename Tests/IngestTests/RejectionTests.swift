import Ingest
import Testing

@Suite("A notification whose data PostgreSQL refuses", .timeLimit(.minutes(5)))
struct RejectionTests {
    private static let trigger = """
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'not %', NEW.sub USING ERRCODE = 'check_violation'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON siwa.accounts FOR EACH ROW EXECUTE FUNCTION public.refuse()
        """

    @Test(
        "is kept with the names of what refused it, and the log says so once while that goes on.",
        arguments: [
            (
                "ALTER TABLE siwa.accounts ADD CONSTRAINT no_person CHECK (sub <> 'person')",
                "SQLSTATE 23514, constraint no_person of siwa.accounts"
            ),
            (
                "ALTER TABLE siwa.accounts ALTER COLUMN email SET NOT NULL",
                "SQLSTATE 23502, column email of siwa.accounts"
            ),
            (trigger, "SQLSTATE 23514"),
        ]
    )
    func names(_ script: String, _ names: String) async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            try await fixture.run(script)
            for id in ["a", "b"] {
                #expect(await fixture.client.answer(try fixture.body(id: id)) == .acknowledged)
            }
            let details = try await fixture.texts("SELECT detail FROM siwa.dead_letters")
            #expect(details == Array(repeating: "PostgreSQL refused it (\(names)).", count: 2))
            // The line follows the answer; another answer follows the line.
            _ = await fixture.client.answer(try fixture.body(app: "com.example.added"))
            #expect(fixture.log.count("PostgreSQL refuses the data of a notification") == 1)
            #expect(fixture.log.count("detail=\"PostgreSQL refused it (\(names)).\"") == 1, "\(fixture.log.lines)")
        }
    }
}
