import Testing

@testable import Telemetry

@Suite("Metrics")
struct MetricsTests {
    @Test("A family shows every combination of its closed sets from the start.")
    func closedSets() {
        let registry = MetricsRegistry()
        let family = registry.counters(
            "events_total",
            "Events.",
            LabelSet("kind", ["a", "b"]),
            LabelSet("outcome", ["x", "y"])
        )
        family.increment("a", "y")
        family.counter("b", "x").increment(by: 3)
        let expected = """
            # HELP events_total Events.
            # TYPE events_total counter
            events_total{kind="a",outcome="x"} 0
            events_total{kind="a",outcome="y"} 1
            events_total{kind="b",outcome="x"} 3
            events_total{kind="b",outcome="y"} 0

            """
        #expect(registry.prometheusText().hasPrefix(expected))
    }

    @Test("No input creates a time series: values outside the set count as other.")
    func openSets() {
        let registry = MetricsRegistry()
        let family = registry.counters("events_total", "Events.", LabelSet("kind", ["a"]))
        for number in 0..<100 {
            family.increment("\(number)\n")
        }
        let lines = registry.prometheusText().split(separator: "\n").filter { $0.hasPrefix("events_total") }
        #expect(lines == [#"events_total{kind="a"} 0"#, #"events_total{kind="other"} 100"#])
    }

    @Test("A histogram counts up to and including each bound.")
    func histogram() {
        let registry = MetricsRegistry()
        let histogram = registry.histogram("wait_seconds", "Wait.", unit: .seconds, bounds: [0.5, 1])
        histogram.record(.milliseconds(500))
        histogram.record(.milliseconds(501))
        histogram.record(.seconds(7))
        histogram.record(.seconds(-7))
        histogram.record(.seconds(Int64.max))
        let expected = """
            wait_seconds_bucket{le="0.5"} 2
            wait_seconds_bucket{le="1"} 3
            wait_seconds_bucket{le="+Inf"} 5
            """
        #expect(registry.prometheusText().contains(expected))
        let items = Histogram(unit: .items, bounds: [1, 2])
        items.record(2)
        items.record(3)
        #expect(items.snapshot.cumulative == [0, 1, 2])
        #expect(items.snapshot.sum == 5)
    }

    @Test("A gauge is exported once its value is known.")
    func unknownValues() {
        let registry = MetricsRegistry()
        let gauge = registry.gauge("age_seconds", "Age.", initially: .nan)
        #expect(!registry.prometheusText().contains("\nage_seconds "))
        gauge.set(1.5)
        gauge.add(-0.25)
        #expect(registry.prometheusText().contains("\nage_seconds 1.25\n"))
    }

    @Test("The age of the oldest change that waits for its publication is left out until it is measured.")
    func unmeasuredAge() {
        let registry = MetricsRegistry()
        let metrics = PublicationMetrics(registry: registry)
        #expect(!registry.prometheusText().contains("\nsiwad_publication_age_seconds "))
        metrics.age.set(0)
        #expect(registry.prometheusText().contains("\nsiwad_publication_age_seconds 0\n"))
    }

    @Test("Label values and help texts are escaped.")
    func escaping() {
        let registry = MetricsRegistry()
        registry.constant("build_info", "One\nline \\.", ("version", "a\"b\\c\nd"))
        let expected = #"""
            # HELP build_info One\nline \\.
            # TYPE build_info gauge
            build_info{version="a\"b\\c\nd"} 1

            """#
        #expect(registry.prometheusText().hasPrefix(expected))
    }

    @Test("All metrics of the contract exist.")
    func contract() {
        let metrics = SiwadMetrics(version: "1.0", appIDs: ["com.example.app"])
        metrics.keysFetchedAt.set(1)
        metrics.deadLetters.gauge("expired").set(0)
        metrics.lastNotification.gauge("com.example.app").set(1_700_000_000)
        let text = metrics.registry.prometheusText()
        let promised = [
            "siwad_notifications_total{event_type=\"consent-revoked\",outcome=\"applied\"} 0",
            "siwad_rejections_total{reason=\"bad-signature\"} 0", "siwad_dead_letters{reason=\"expired\"} 0",
            "siwad_request_duration_seconds_count 0", "siwad_commit_duration_seconds_count 0",
            "siwad_batch_size_count 0", "siwad_queue_depth 0", "siwad_spool_bytes 0", "siwad_event_lag_seconds_count 0",
            "siwad_keys_age_seconds ", "siwad_key_fetches_total{result=\"success\"} 0",
            "siwad_last_notification_timestamp_seconds{app_id=\"com.example.app\"} 1700000000",
            "siwad_sessions_ended_total{reason=\"consent-revoked\"} 0", "siwad_database_up 0",
            "siwad_build_info{version=\"1.0\"} 1", "process_resident_memory_bytes ", "process_cpu_seconds_total ",
            "process_open_fds ", "process_max_fds ", "process_start_time_seconds ", "process_virtual_memory_bytes ",
        ]
        for line in promised {
            #expect(text.contains("\n\(line)"), "\(line)")
        }
    }

    @Test("The sum of durations does not overflow, whatever was recorded.")
    func longDurations() {
        let histogram = Histogram(unit: .seconds, bounds: [1])
        for _ in 0..<1_000 { histogram.record(Duration.seconds(400 * 86_400)) }
        histogram.record(.milliseconds(1_500))
        #expect(histogram.samples.first { $0.suffix == "_sum" }?.value == 400 * 86_400 * 1_000 + 1.5)
        #expect(histogram.samples.last?.value == 1_001)
    }

    @Test("Open dead letters are left out until they are counted.")
    func unknownDeadLetters() {
        let metrics = SiwadMetrics(version: "1.0", appIDs: [])
        #expect(!metrics.registry.prometheusText().contains("\nsiwad_dead_letters{"))
    }

    @Test("The last notification of an app is exported as long as the app is configured.")
    func laterApps() {
        let metrics = SiwadMetrics(version: "1.0", appIDs: ["com.example.first", "com.example.former"])
        metrics.lastNotification.gauge("com.example.former").set(4)
        metrics.lastNotification.gauge("com.example.first").set(5)
        metrics.lastNotification.gauge("com.example.late").set(6)
        metrics.lastNotification.keep(["com.example.first", "com.example.late"])
        metrics.lastNotification.gauge("com.example.late").set(7)
        metrics.lastNotification.gauge("com.example.never").set(8)
        let lines = metrics.registry.prometheusText().split(separator: "\n").filter {
            $0.hasPrefix("siwad_last_notification_timestamp_seconds")
        }
        let name = "siwad_last_notification_timestamp_seconds"
        #expect(lines == ["\(name){app_id=\"com.example.first\"} 5", "\(name){app_id=\"com.example.late\"} 7"])
    }

    @Test("Every family has its help and type once, and every line is one sample.")
    func wellFormed() {
        let text = SiwadMetrics(version: "1.0", appIDs: []).registry.prometheusText()
        var families: Set<Substring> = []
        for line in text.split(separator: "\n", omittingEmptySubsequences: false).dropLast() {
            if line.hasPrefix("# HELP ") {
                #expect(families.insert(line.split(separator: " ")[2]).inserted)
            } else if !line.hasPrefix("# TYPE ") {
                #expect(Double(line[(line.lastIndex(of: " ") ?? line.startIndex)...].dropFirst()) != nil, "\(line)")
            }
        }
        #expect(text.hasSuffix("\n"))
    }

    @Test("Counting from many threads loses nothing.")
    func concurrency() async {
        let counter = Counter()
        let gauge = Gauge()
        await withTaskGroup(of: Void.self) { group in
            for _ in 0..<8 {
                group.addTask {
                    for _ in 0..<1000 {
                        counter.increment()
                        gauge.add(1)
                    }
                }
            }
        }
        #expect(counter.value == 8000)
        #expect(gauge.value == 8000)
    }

    @Test("The status of a process is parsed whatever the name of its command.")
    func processStatus() throws {
        let fields = (3...30).map { "\($0)" }.joined(separator: " ")
        let status = try #require(ProcessStatus(stat: "1 (a) b) \(fields)\n"))
        #expect(status.processorTicks == 14 + 15)
        #expect(status.threads == 20)
        #expect(status.startTicks == 22)
        #expect(status.virtualBytes == 23)
        #expect(status.residentPages == 24)
        #expect(ProcessStatus(stat: "") == nil)
        #expect(ProcessMetrics.bootTime(stat: "cpu 1\nbtime 1700000000\n") == 1_700_000_000)
    }
}
