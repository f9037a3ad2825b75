<?php // Receives siwad's webhooks: verifies each, and acts on it once. Needs pdo_sqlite. Environment: SECRET, DATABASE.
[$id, $timestamp] = [$_SERVER['HTTP_WEBHOOK_ID'] ?? '', $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? ''];
$body = file_get_contents('php://input');
$key = base64_decode(str_replace('whsec_', '', getenv('SECRET')));
$expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true));
$matching = array_filter(
    explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? ''), fn($signature) => hash_equals($expected, $signature));
if (!$matching || abs(time() - (int) $timestamp) > 300) {
    http_response_code(400);
    exit;
}
['type' => $type, 'data' => $data] = json_decode($body, true);
$database = new PDO('sqlite:' . getenv('DATABASE'));
$database->exec('CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY)');
$database->exec('CREATE TABLE IF NOT EXISTS applied (subject TEXT PRIMARY KEY, position INTEGER)');
$database->exec('BEGIN IMMEDIATE'); // One transaction: if acting fails, siwad gets a 500 and sends the message again.
$message = $database->prepare('INSERT OR IGNORE INTO handled VALUES (?)');
$message->execute([$id]);
if ($message->rowCount() && isset($data['position'])) {
    $app = $data['scope'] === 'app' ? $data['app_id'] : '';
    $subject = [$data['team_id'], $data['sub'], explode('.', $type)[1], $app, $data['session_id'] ?? ''];
    $latest = $database->prepare('INSERT INTO applied VALUES (?, ?) ON CONFLICT (subject) DO UPDATE
        SET position = excluded.position WHERE excluded.position > position');
    $latest->execute([json_encode($subject), $data['position']]);
    if ($latest->rowCount()) error_log("{$data['sub']}: $type"); // Act here, in the same database.
}
$database->exec('COMMIT');
http_response_code(204);
