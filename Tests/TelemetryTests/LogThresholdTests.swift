import Logging
import Synchronization
import Testing

@testable import Telemetry

@Suite("The level of all logs of a process")
struct LogThresholdTests {
    @Test("A change applies to existing logs, except quieter ones.")
    func change() {
        let lines = Lines()
        let threshold = LogThreshold(.info)
        let log = Log(
            Logger(label: "test") { label in
                LineLog(label: label, level: threshold, format: .text) { line in
                    lines.texts.withLock { $0.append(String(decoding: line, as: UTF8.self)) }
                }
            }
        )
        let quiet = log.quieter(than: .warning)
        log.debug("first")
        threshold.level = .debug
        log.debug("second")
        quiet.info("third")
        threshold.level = .error
        log.warning("fourth")
        let texts = lines.texts.withLock { $0 }
        #expect(texts.count == 1)
        #expect(texts.first?.contains("second") == true)
    }

    private final class Lines: Sendable {
        let texts = Mutex<[String]>([])
    }
}
