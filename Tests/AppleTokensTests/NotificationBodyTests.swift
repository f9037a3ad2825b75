import AppleTokens
import Testing

@Suite struct NotificationBodyTests {
    private let token = "eyJ-_.e30.c2ln"

    private func found(_ body: String) throws(Rejection) -> String {
        String(decoding: try NotificationBody.token(in: Array(body.utf8)), as: UTF8.self)
    }

    @Test(
        "The token is found in every shape that a body can have.",
        arguments: [
            #"{"payload":"TOKEN"}"#,
            #"{ "payload" : "TOKEN" }"#,
            " \r\n\t{\"payload\":\"TOKEN\"}\n",
            #"{"a":[1,{"payload":"x"}],"payload":"TOKEN","b":null}"#,
            #"{"signedPayload":"x","payload":"TOKEN"}"#,
            #"{"payload":"TOKEN","signedPayload":"x"}"#,
            #"{"pay\u006coad":"TOKEN"}"#,
            "TOKEN",
            "\n  TOKEN\r\n",
            "payload=TOKEN",
            "payload=TOKEN\n",
            "a=b&payload=TOKEN&c",
            "p%61yload=TOKEN",
            "&&payload=TOKEN&",
            "signedPayload=x&payload=TOKEN",
        ]
    )
    func shapes(body: String) throws {
        #expect(try found(body.replacing("TOKEN", with: token)) == token)
    }

    @Test("Escapes in JSON and forms are decoded.")
    func escapes() throws {
        #expect(try found(#"{"payload":"\u0065yJ-_.e30.c2ln"}"#) == token)
        #expect(try found("payload=eyJ%2d%5F%2Ee30.c2ln") == token)
        #expect(try found("payload=a+b%20c%2Bd") == "a b c+d")
    }

    @Test(
        "A body without a token is refused.",
        arguments: [
            "", " ", "\n\t\r ", "{", "{}", "[]", "null", "42", "\"a.b.c\"", #"["a.b.c"]"#, "hello", "hello world",
            #"{"payload":null}"#, #"{"payload":""}"#, #"{"payload":1}"#, #"{"payload":{}}"#, #"{"payload":["a.b.c"]}"#,
            #"{"Payload":"a.b.c"}"#, #"{"payload":"a.b.c"} x"#, #"{"payload":"a.b.c",}"#,
            #"{"payload":"a.b.c","payload":"d.e.f"}"#, #"{"payload":"a.b.c","p\u0061yload":"d.e.f"}"#,
            #"{"payload":"a.b.c\u0000"}"#, #"{'payload':'a.b.c'}"#, "\u{FEFF}{\"payload\":\"a.b.c\"}",
            "payload", "payload=", "Payload=a.b.c", "payload=a&payload=b", "payload=a&p%61yload=b", "payload=%",
            "payload=%2",
            "payload=%zz", "payload=a%2", "=a.b.c", "a.b.c d", "a.b.c\u{0}", "<xml/>", "x=payload",
            "--boundary\r\nContent-Disposition: form-data; name=\"payload\"\r\n\r\na.b.c\r\n--boundary--",
        ]
    )
    func refused(body: String) {
        #expect(throws: Rejection.malformedBody) { try found(body) }
    }

    @Test("No form with more than 16 fields is read, empty ones counted, wherever the token is.")
    func fields() throws {
        let others = String(repeating: "a=b&", count: 15)
        #expect(try found(others + "payload=\(token)") == token)
        #expect(try found("payload=\(token)" + String(repeating: "&", count: 15)) == token)
        for body in [
            "a&" + others + "payload=\(token)", "payload=\(token)&" + others + "a",
            "payload=\(token)" + String(repeating: "&", count: 16), String(repeating: "a&", count: 32_768),
            String(repeating: "&", count: 65_536),
        ] {
            #expect(throws: Rejection.malformedBody) { try found(body) }
        }
    }

    @Test("A name in a form counts only as a whole, its escapes undone, and each escape in a name has to be one.")
    func names() throws {
        for name in ["payloa", "payloads", "payload+", "%00payload", "payloa%64%64"] {
            #expect(throws: Rejection.malformedBody) { try found("\(name)=\(token)") }
        }
        #expect(try found("%70%61%79%6c%6F%61%64=\(token)") == token)
        for name in ["%", "a%2", "a%g0", "payload%"] {
            #expect(throws: Rejection.malformedBody) { try found("payload=\(token)&\(name)=x") }
        }
        #expect(throws: Rejection.appStoreNotification) { try found("signed%50ayload=\(token)") }
    }

    @Test("JSON nested deeper than 32 levels is refused even if the body has a token.")
    func nesting() {
        let deep = String(repeating: "[", count: 40) + String(repeating: "]", count: 40)
        #expect(throws: Rejection.malformedBody) { try found(#"{"payload":"a.b.c","x":\#(deep)}"#) }
    }

    @Test("Bytes that are no UTF-8 are refused.")
    func invalidUTF8() {
        let body = Array(#"{"payload":"a.b."#.utf8) + [0xFF] + Array(#""}"#.utf8)
        #expect(throws: Rejection.malformedBody) { try NotificationBody.token(in: body) }
        #expect(throws: Rejection.malformedBody) { try NotificationBody.token(in: [0xFF, 0xFE]) }
    }

    @Test(
        "App Store notifications are identified.",
        arguments: [#"{"signedPayload":"a.b.c"}"#, #" {"x":1,"signedPayload":null} "#, "signedPayload=a.b.c"]
    )
    func appStore(body: String) {
        #expect(throws: Rejection.appStoreNotification) { try found(body) }
    }

    @Test("A body may be 64 KiB large and no larger.")
    func size() throws {
        let around = #"{"payload":"a.b.c"}"#.utf8.count
        let largest = #"{"payload":"a.b.c"}"# + String(repeating: " ", count: NotificationBody.maximumBytes - around)
        #expect(try found(largest) == "a.b.c")
        #expect(throws: Rejection.bodyTooLarge) { try found(largest + " ") }
    }

    @Test("A body in a span is read like an array.")
    func span() throws {
        let body = Array(#"{"payload":"a.b.c"}"#.utf8)
        #expect(try NotificationBody.token(in: body.span) == Array("a.b.c".utf8))
        let large = [UInt8](repeating: 0x20, count: NotificationBody.maximumBytes + 1)
        #expect(throws: Rejection.bodyTooLarge) { try NotificationBody.token(in: large.span) }
        let empty: [UInt8] = []
        #expect(throws: Rejection.malformedBody) { try NotificationBody.token(in: empty.span) }
    }
}
