import AppleTokens
import Testing

@Suite struct IdentifierTests {
    @Test("Identifiers are equal when their bytes are, not when Swift takes the texts for equivalent.")
    func equalByBytes() {
        #expect("\u{212A}" == "K")
        #expect(Subject("\u{212A}") != Subject("K"))
        #expect(Subject("e\u{301}") != Subject("\u{E9}"))
        #expect(Subject("a\u{323}\u{307}") != Subject("a\u{307}\u{323}"))
        #expect(Subject("\u{E9}") == Subject("\u{E9}"))
        #expect(Subject("abc") == Subject("abc"))
        #expect(Subject("abc") != Subject("abd"))
    }

    @Test("Sets distinguish identifiers by their bytes.")
    func sets() {
        #expect(Set([ClientID("K"), ClientID("\u{212A}"), ClientID("K")]).count == 2)
    }

    @Test("The order is that of the bytes, as PostgreSQL's COLLATE \"C\".")
    func order() {
        let sorted = ["b", "\u{E9}", "a", "Z", "e\u{301}", ""].map(Subject.init(_:)).sorted()
        #expect(sorted.map(\.rawValue) == ["", "Z", "a", "b", "e\u{301}", "\u{E9}"].map { $0 })
        #expect(NotificationID("a") < NotificationID("aa"))
    }

    @Test("An identifier describes itself by its text alone.")
    func description() {
        #expect("\(TeamID("A1B2C3D4E5")) \(AppID("com.example.app"))" == "A1B2C3D4E5 com.example.app")
    }
}
