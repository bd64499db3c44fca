"use strict";
// Without this script the activity section shows the first two policies.
(function () {
  var choice = document.getElementById("second");
  if (!choice) { return; }
  function show() {
    document.querySelectorAll("#activity [data-run]").forEach(function (part) {
      var run = part.getAttribute("data-run");
      part.classList.toggle("off", run !== "0" && run !== choice.value);
    });
  }
  choice.addEventListener("change", show);
  document.querySelector("#activity .choice").hidden = false;
  show();
})();
