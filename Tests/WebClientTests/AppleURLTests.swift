import Testing
import WebClient

@Suite("The URL of Apple")
struct AppleURLTests {
    @Test(
        "A base has a scheme, a host and at most a port.",
        arguments: [
            ("https://appleid.apple.com", "https://appleid.apple.com", false),
            ("https://appleid.apple.com/", "https://appleid.apple.com", false),
            ("http://127.0.0.1:8090", "http://127.0.0.1:8090", true), ("http://[::1]:8090/", "http://[::1]:8090", true),
            ("HTTP://localhost:1", "HTTP://localhost:1", true),
            ("https://example.com:8443", "https://example.com:8443", false),
        ]
    )
    func accepted(_ text: String, _ description: String, _ isUnencrypted: Bool) throws {
        let url = try AppleURL(parsing: text)
        #expect(url.description == description)
        #expect(url.isUnencrypted == isUnencrypted)
    }

    @Test(
        "Every other URL is refused: unencrypted beyond this machine, with a path, or to another host than it seems.",
        arguments: [
            "", "appleid.apple.com", "http://appleid.apple.com", "http://127.0.0.1.example.com", "http://10.0.0.1",
            "http://127.0.0.1@example.com", "https://user@appleid.apple.com", "https://appleid.apple.com/auth",
            "https://appleid.apple.com?a", "https://appleid.apple.com#a", "https://appleid.apple.com//",
            "file:///etc/passwd", "https:appleid.apple.com", "https://", "https://apple id", "ftp://127.0.0.1",
            "https://appleid.apple.com/?", "https://appleid.apple.com:x",
        ]
    )
    func refused(_ text: String) throws {
        let error = try #require(throws: WebClientError.self) { try AppleURL(parsing: text) }
        #expect(error.code == .invalidURL)
    }
}
