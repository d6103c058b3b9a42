// How fast an upload goes.
const SPEED_S = 0.4; // weight of what was measured last

// A function of the bytes that are sent: bytes a second, a few times a second; undefined in between.
export function newMeasure() {
  let [at, bytes, speed, latest] = [performance.now(), -1, 0, 0];
  const measure = (sent) => {
    const now = performance.now();
    latest = sent;
    if (bytes < 0) bytes = sent; // where the upload goes on from
    if (now - at < 250) return undefined;
    const measured = (1000 * Math.max(0, sent - bytes)) / (now - at);
    speed = speed ? speed + SPEED_S * (measured - speed) : measured;
    [at, bytes] = [now, sent];
    return speed;
  };
  measure.sent = () => latest;
  return measure;
}
