import Basics
import Glibc
import Testing

@Suite("The page of the metrics")
struct MetricsReferenceTests {
    private static let path =
        #filePath.split(separator: "/").dropLast(3).map { "/\($0)" }.joined() + "/deploy/doc/metrics.md"

    @Test("The page lists every metric that siwad exports, with its labels.")
    func page() throws {
        let page = MetricsReference.page + "\n"
        if getenv("SIWAD_RECORD_METRICS") != nil {
            let stream = try #require(fopen(Self.path, "w"))
            fputs(page, stream)
            fclose(stream)
            return
        }
        let written = String(decoding: try readFile(atPath: Self.path), as: UTF8.self)
        #expect(written == page, "run the test with SIWAD_RECORD_METRICS=1")
    }
}
