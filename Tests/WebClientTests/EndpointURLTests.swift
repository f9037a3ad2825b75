import Testing

@testable import WebClient

@Suite("URLs of endpoints")
struct EndpointURLTests {
    @Test("Host, port and scheme are found, and the query is not shown.")
    func parts() throws {
        let url = try EndpointURL(parsing: "HTTPS://Shop.Example.com:8443/hooks/siwa?key=s3cret")
        #expect(url.host == "shop.example.com")
        #expect(url.port == 8_443)
        #expect(url.isEncrypted)
        #expect("\(url)" == "https://shop.example.com:8443/hooks/siwa")
        #expect(url.text == "https://shop.example.com:8443/hooks/siwa?key=s3cret")
        #expect(try EndpointURL(parsing: "https://a.example?x").text == "https://a.example/?x")
        let literal = try EndpointURL(parsing: "http://[::1]/")
        #expect(literal.host == "::1" && literal.port == 80 && !literal.isEncrypted)
    }

    @Test(
        "Forms that parsers read differently are refused.",
        arguments: [
            "", "shop.example.com", "ftp://a.example/", "https://", "https:///path", "https://user@a.example/",
            "https://a.example@127.0.0.1/", "https://a.example/#part", "https://a.example:0/",
            "https://a.example:65536/",
            "https://a.example:/", "https://a.example:8x/", "https://[fe80::1%25eth0]/", "https://[::1/",
            "https://[a]/",
            "https://bücher.example/", "https://a%2eexample/", "https://a.example\\@b.example/", "https://a b/",
            "https://a.example/\u{0}", "https://[::1]x/", "https://a.example/" + String(repeating: "x", count: 2_040),
        ]
    )
    func refused(text: String) {
        #expect(throws: WebClientError.self) { try EndpointURL(parsing: text) }
    }
}
