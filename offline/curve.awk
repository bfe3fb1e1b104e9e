# Draws the loss curve of a training run (curve.csv: step,tokens,loss,rate,accuracy) as an SVG.
#   awk -f offline/curve.awk build/pocket/target/curve.csv > models/withy-pocket-loss.svg
BEGIN { FS = ","; width = 640; height = 240; left = 40; bottom = 30 }
$3 != "" { n++; x[n] = $2 / 1e6; loss[n] = $3; if ($3 > top) top = $3; if (x[n] > last) last = x[n] }
$5 != "" { m++; ax[m] = $2 / 1e6; accuracy[m] = $5; if (ax[m] > last) last = ax[m] }
function px(v) { return left + (width - left - 10) * v / last }
function py(share) { return 10 + (height - bottom - 10) * (1 - share) }
END {
  if (n == 0) exit 1
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n", width, height
  printf "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
  printf "<path d=\"M%d 10V%dH%d\" fill=\"none\" stroke=\"black\"/>\n", left, height - bottom, width - 10
  printf "<text x=\"4\" y=\"16\">%.1f</text><text x=\"4\" y=\"%d\">0</text>\n", top, height - bottom
  printf "<text x=\"%d\" y=\"%d\">million tokens: %.1f at the end</text>\n", left, height - 10, last
  printf "<text x=\"%d\" y=\"22\" fill=\"#c33\">answer loss (0 to %.1f)</text>\n", width - 190, top
  printf "<text x=\"%d\" y=\"36\" fill=\"#36c\">exact match (0 to 1)</text>\n", width - 190
  printf "<polyline fill=\"none\" stroke=\"#c33\" points=\""
  for (i = 1; i <= n; i++) printf "%.1f,%.1f ", px(x[i]), py(loss[i] / top)
  printf "\"/>\n<polyline fill=\"none\" stroke=\"#36c\" points=\""
  for (i = 1; i <= m; i++) printf "%.1f,%.1f ", px(ax[i]), py(accuracy[i])
  printf "\"/>\n</svg>\n"
}
