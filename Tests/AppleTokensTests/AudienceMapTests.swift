import AppleTokens
import Testing

@Suite struct AudienceMapTests {
    @Test("Groups, teams and further client ids are read in their order.")
    func groups() throws {
        let map = try AudienceMap(parsing: "A1B2C3D4E5/com.example.app+com.example.web,ZZZZZZZZZ9/org.other")
        #expect(map.groups.map(\.team) == [TeamID("A1B2C3D4E5"), TeamID("ZZZZZZZZZ9")])
        #expect(map.groups.map(\.app) == [AppID("com.example.app"), AppID("org.other")])
        #expect(map.groups[0].clients == [ClientID("com.example.app"), ClientID("com.example.web")])
        #expect(map.groups[1].clients == [ClientID("org.other")])
    }

    @Test("Every client id of a group leads to it, and nothing else does.")
    func routing() throws {
        let map = try AudienceMap(parsing: "A1B2C3D4E5/com.example.app+com.example.web,A1B2C3D4E5/org.other")
        #expect(map.group(audience: "com.example.app")?.app == AppID("com.example.app"))
        #expect(map.group(audience: "com.example.web")?.app == AppID("com.example.app"))
        #expect(map.group(audience: "org.other")?.app == AppID("org.other"))
        for stranger in ["", "com.example", "com.example.app2", "COM.EXAMPLE.APP", "A1B2C3D4E5", "com.example.app "] {
            #expect(map.group(audience: stranger) == nil)
        }
    }

    @Test("An aud that only looks like one of ours isn't.")
    func canonicalEquivalence() throws {
        let map = try AudienceMap(parsing: "A1B2C3D4E5/com.example.K")
        #expect(map.group(audience: "com.example.\u{212A}") == nil)
    }

    @Test("White space around entries and ids is allowed.")
    func whiteSpace() throws {
        let text = " A1B2C3D4E5/com.example.app + com.example.web ,\n\tZZZZZZZZZ9 / org.other\r\n"
        let plain = "A1B2C3D4E5/com.example.app+com.example.web,ZZZZZZZZZ9/org.other"
        #expect(try AudienceMap(parsing: text) == AudienceMap(parsing: plain))
    }

    @Test(
        "A mistake is named with its entry.",
        arguments: [
            ("", .empty, 0),
            (" \n", .empty, 0),
            ("A1B2C3D4E5/a,", .emptyEntry, 2),
            (",A1B2C3D4E5/a", .emptyEntry, 1),
            ("com.example.app", .missingTeamID, 1),
            ("A1B2C3D4E5/a,com.example.app", .missingTeamID, 2),
            ("A1B2C3D4E/a", .malformedTeamID, 1),
            ("A1B2C3D4E56/a", .malformedTeamID, 1),
            ("a1b2c3d4e5/a", .malformedTeamID, 1),
            ("A1B2C3D4É/a", .malformedTeamID, 1),
            ("/a", .malformedTeamID, 1),
            ("A1B2C3D4E5/", .malformedClientID, 1),
            ("A1B2C3D4E5/a+", .malformedClientID, 1),
            ("A1B2C3D4E5/+a", .malformedClientID, 1),
            ("A1B2C3D4E5/a b", .malformedClientID, 1),
            ("A1B2C3D4E5/a/b", .malformedClientID, 1),
            ("A1B2C3D4E5/a;A1B2C3D4E5/b", .malformedClientID, 1),
            ("A1B2C3D4E5/ä", .malformedClientID, 1),
            ("A1B2C3D4E5/*", .malformedClientID, 1),
            ("A1B2C3D4E5/a+a", .duplicateClientID, 1),
            ("A1B2C3D4E5/a,ZZZZZZZZZ9/a", .duplicateClientID, 2),
            ("A1B2C3D4E5/a+b,ZZZZZZZZZ9/c+b", .duplicateClientID, 2),
        ] as [(String, AudienceMapError.Code, Int)]
    )
    func mistakes(text: String, code: AudienceMapError.Code, position: Int) {
        let error = #expect(throws: AudienceMapError.self) { try AudienceMap(parsing: text) }
        #expect(error?.code == code)
        #expect(error?.position == position)
    }

    @Test("Every mistake is one line that says what to write instead.", arguments: AudienceMapError.Code.allCases)
    func oneLine(code: AudienceMapError.Code) throws {
        let texts: [AudienceMapError.Code: String] = [
            .empty: "", .emptyEntry: ",", .missingTeamID: "a", .malformedTeamID: "x/a",
            .malformedClientID: "A1B2C3D4E5/ ", .duplicateClientID: "A1B2C3D4E5/a+a",
        ]
        let text = try #require(texts[code])
        let error = #expect(throws: AudienceMapError.self) { try AudienceMap(parsing: text) }
        let description = try #require(error?.description)
        #expect(error?.code == code)
        #expect(!description.contains("\n"))
        #expect(description.contains("expected TEAMID/primary.app.id") || description.contains("once"))
    }

    @Test("A client id may be 255 bytes long and no longer.")
    func length() throws {
        let longest = String(repeating: "a", count: 255)
        #expect(try AudienceMap(parsing: "A1B2C3D4E5/\(longest)").groups.count == 1)
        #expect(throws: AudienceMapError.self) { try AudienceMap(parsing: "A1B2C3D4E5/\(longest)a") }
    }
}
