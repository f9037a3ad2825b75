import Testing

@testable import WebClient

@Suite("URLs of key sets")
struct KeySetURLTests {
    @Test(
        "Web addresses are kept as they are.",
        arguments: [
            "https://appleid.apple.com/auth/keys", "HTTPS://example.com:8443/keys?a=b",
            "http://127.0.0.1:8081/auth/keys",
            "http://127.9.9.9/", "http://localhost:1/", "http://[::1]:8080/auth/keys", "https://[2001:db8::1]/",
        ]
    )
    func web(_ text: String) throws {
        #expect(try KeySetURL(parsing: text).source == .web(text))
    }

    @Test(
        "Files are named by absolute paths.",
        arguments: [
            ("file:///etc/keys.json", "/etc/keys.json"), ("file:/etc/keys.json", "/etc/keys.json"),
            ("file://localhost/etc/keys.json", "/etc/keys.json"), ("FILE:///a%20b", "/a b"),
        ]
    )
    func files(_ text: String, _ path: String) throws {
        #expect(try KeySetURL(parsing: text).source == .file(path))
    }

    @Test(
        "A URL that would fetch keys unencrypted from another machine is refused, and so is invalid text.",
        arguments: [
            "", "keys.json", "/etc/keys.json", "http://appleid.apple.com/auth/keys", "http://127.0.0.1.example.com/",
            "http://127.0.0.1@example.com/", "http://user@127.0.0.1/", "http://localhost.example.com/",
            "http://128.0.0.1/", "http://127.0.0.1:99999/", "http://127.0.0/", "http://127.1/", "http://[::2]/",
            "http:///path", "https://", "https:/example.com", "ftp://example.com/", "file://other/etc/keys.json",
            "file:keys.json", "file:///a%0", "file:///a%00", "https://example.com/a b", "https://exa\u{301}mple.com/",
            "https://a:b/",
        ]
    )
    func refused(_ text: String) throws {
        let error = try #require(throws: WebClientError.self) { try KeySetURL(parsing: text) }
        #expect(error.code == .invalidURL)
    }
}
